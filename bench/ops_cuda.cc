// Times of the decoder's matrix products on the GPU, one row per shape and number of rows. Weights take turns, so that
// none is in the second-level cache when its turn comes. Usage: bench_ops_cuda [fp8 | fp8-blocks] [ROWS ...], in bf16
// unless named.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/cuda_status.h"
#include "core/device_memory.h"
#include "kvant/core/thread_pool.h"
#include "ops/linear.h"

namespace kvant {
namespace {

struct Shape {
  const char* name;
  int64_t out_features, in_features;
  ops::LinearOutput output;
};

constexpr Shape kShapes[] = {
    {"8B qkv", 6144, 4096, ops::LinearOutput::kActivations},      {"8B output", 4096, 4096, ops::LinearOutput::kAddF32},
    {"8B gate+up", 24576, 4096, ops::LinearOutput::kActivations}, {"8B down", 4096, 12288, ops::LinearOutput::kAddF32},
    {"8B head", 151936, 4096, ops::LinearOutput::kF32},
};
/// Larger than any second-level cache.
constexpr int64_t kRotatedBytes = int64_t{400} << 20;

/// Reproducible values in [-0.5, 0.5), cheap to make.
void fill(int64_t begin, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(begin + i) * 2654435761u;
    out[i] = static_cast<float>(bits >> 8) * 0x1p-24f - 0.5f;
  }
}

Result<double> microseconds(std::vector<std::unique_ptr<ops::Linear>>& layers, const ops::LinearArgs& args,
                            Stream stream) {
  auto* handle = static_cast<cudaStream_t>(stream.cuda);
  for (const auto& layer : layers) KVANT_FAIL_IF_ERROR(layer->run(args, stream));
  cudaEvent_t start = nullptr, end = nullptr;
  KVANT_FAIL_IF_ERROR(cuda_status(cudaEventCreate(&start), "cudaEventCreate"));
  KVANT_FAIL_IF_ERROR(cuda_status(cudaEventCreate(&end), "cudaEventCreate"));
  const int rounds = std::max(3, static_cast<int>(60 / layers.size()));
  KVANT_FAIL_IF_ERROR(cuda_status(cudaEventRecord(start, handle), "cudaEventRecord"));
  for (int round = 0; round < rounds; ++round)
    for (const auto& layer : layers) KVANT_FAIL_IF_ERROR(layer->run(args, stream));
  KVANT_FAIL_IF_ERROR(cuda_status(cudaEventRecord(end, handle), "cudaEventRecord"));
  KVANT_FAIL_IF_ERROR(synchronise(stream));
  float milliseconds = 0;
  KVANT_FAIL_IF_ERROR(cuda_status(cudaEventElapsedTime(&milliseconds, start, end), "cudaEventElapsedTime"));
  static_cast<void>(cudaEventDestroy(start));
  static_cast<void>(cudaEventDestroy(end));
  return 1e3 * milliseconds / (rounds * static_cast<double>(layers.size()));
}

enum class Format { kBf16, kFp8Rows, kFp8Blocks };

Status run(const std::vector<int64_t>& row_counts, Format format) {
  ThreadPool pool(0);
  KVANT_ASSIGN_OR_RETURN(const CudaStream owner, CudaStream::create());
  const Stream stream = owner.stream();
  KVANT_ASSIGN_OR_RETURN(const auto context, ops::LinearContext::create(stream, pool));
  const int64_t most_rows = *std::max_element(row_counts.begin(), row_counts.end());
  fmt::print("{:<12} {:>6} {:>10} {:>10} {:>10}\n", "weight", "rows", "us", "GB/s", "TFLOP/s");
  for (const Shape& shape : kShapes) {
    const int64_t bytes = (format == Format::kBf16 ? 2 : 1) * shape.out_features * shape.in_features;
    std::vector<std::unique_ptr<ops::Linear>> layers;
    const ops::WeightRows rows = [&](int64_t begin, int64_t end, float* out) {
      fill(begin * shape.in_features, (end - begin) * shape.in_features, out);
    };
    const ops::Fp8WeightRows fp8_rows = [&](int64_t begin, int64_t end, uint8_t* codes, float* scales) {
      const int64_t groups = shape.in_features / ops::kFp8Group;
      std::fill_n(codes, (end - begin) * shape.in_features, uint8_t{0x31});
      for (int64_t row = begin; row < end; ++row)
        std::fill_n(scales + (row - begin) * groups, groups,
                    format == Format::kFp8Blocks || row % 2 == 0 ? 0.01f : 0.02f);
    };
    for (int64_t i = 0; i < std::max<int64_t>(1, kRotatedBytes / bytes); ++i) {
      auto layer = format == Format::kBf16
                       ? ops::Linear::create(ops::LinearFormat::kBf16, shape.out_features, shape.in_features, rows,
                                             most_rows, stream, context.get())
                       : ops::Linear::create_fp8(shape.out_features, shape.in_features, fp8_rows, most_rows, stream,
                                                 context.get());
      if (!layer) return layer.error();
      layers.push_back(*std::move(layer));
    }
    // Random bits that are small numbers: no exponent is above that of 1.
    std::vector<uint16_t> x(static_cast<size_t>(most_rows * shape.in_features));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>((i * 2654435761u >> 16) & 0xbfffu);
    const auto x_bytes = static_cast<int64_t>(x.size() * sizeof(uint16_t));

    KVANT_ASSIGN_OR_RETURN(const DeviceBuffer device_x, DeviceBuffer::create(MemoryKind::kCuda, x_bytes, "x"));
    KVANT_RETURN_IF_ERROR(copy_bytes(device_x.data(), x.data(), x_bytes, stream));
    KVANT_ASSIGN_OR_RETURN(
        const DeviceBuffer y,
        DeviceBuffer::create(MemoryKind::kCuda, 4 * ops::padded_fp8_rows(most_rows) * shape.out_features, "y"));
    for (const int64_t num_rows : row_counts) {
      KVANT_ASSIGN_OR_RETURN(
          const double us,
          microseconds(layers, {.x = device_x.data(), .num_rows = num_rows, .y = y.data(), .output = shape.output},
                       stream));
      fmt::print("{:<12} {:>6} {:>10.2f} {:>10.0f} {:>10.1f}\n", shape.name, num_rows, us,
                 static_cast<double>(bytes) / us * 1e-3,
                 2e-6 * static_cast<double>(num_rows * shape.out_features * shape.in_features) / us);
    }
  }
  return {};
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  std::vector<int64_t> row_counts;
  auto format = kvant::Format::kBf16;
  if (argc > 1 && std::string_view(argv[1]) == "fp8") format = kvant::Format::kFp8Rows;
  if (argc > 1 && std::string_view(argv[1]) == "fp8-blocks") format = kvant::Format::kFp8Blocks;
  for (int i = format == kvant::Format::kBf16 ? 1 : 2; i < argc; ++i) row_counts.push_back(std::atoll(argv[i]));
  if (row_counts.empty()) row_counts = {1, 2, 4, 8, 16, 64, 256};
  const kvant::Status status = kvant::run(row_counts, format);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}
