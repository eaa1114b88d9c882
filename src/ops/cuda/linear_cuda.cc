#include "ops/cuda/linear_cuda.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/cuda_status.h"
#include "core/device_memory.h"
#include "core/float_bits.h"
#include "kvant/core/device.h"
#include "ops/cuda/batch_rows.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/fp8_products.h"
#include "ops/cuda/lt_product.h"
#include "ops/cuda/one_row.h"
#include "ops/divide_up.h"

namespace kvant::ops::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{32} << 20;
/// Of the GPUs for which the library scales groups of 128 columns.
constexpr int32_t kFp8Capability = 90;

class Context final : public LinearContext {
 public:
  static Result<std::unique_ptr<LinearContext>> create(void* stream, ThreadPool& loaders) {
    std::unique_ptr<Context> context(new Context(static_cast<cudaStream_t>(stream), loaders));
    KVANT_ASSIGN_OR_FAIL(const auto lt, LtDevice::create());
    context->bf16_ = std::make_unique<LtProducts>(lt);
    context->fp8_ = std::make_unique<Fp8Products>(lt);
    context->multiplies_fp8_ = device_of(Stream::on_cuda(stream)).compute_capability == kFp8Capability;
    KVANT_ASSIGN_OR_FAIL(context->few_rows_, FewRows::create(stream));
    KVANT_ASSIGN_OR_FAIL(context->batch_rows_, BatchRows::create());
    for (Staging& staging : context->staging_) {
      KVANT_ASSIGN_OR_FAIL(staging.memory, DeviceBuffer::create(MemoryKind::kPinned, kStagingBytes, "weight uploads"));
      KVANT_FAIL_IF_ERROR(
          cuda_status(cudaEventCreateWithFlags(&staging.sent, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    }
    return context;
  }

  ~Context() override {
    for (const Staging& staging : staging_)
      if (staging.sent != nullptr) static_cast<void>(cudaEventDestroy(staging.sent));
  }

  bool multiplies_fp8(int64_t out_features, int64_t in_features) const override {
    return multiplies_fp8_ && out_features % 16 == 0 && in_features % kFp8Group == 0;
  }
  LtProducts& bf16() { return *bf16_; }
  Fp8Products& fp8() { return *fp8_; }
  /// Null where the device has no such kernels.
  const FewRows* few_rows() const { return few_rows_.get(); }
  const BatchRows* batch_rows() const { return batch_rows_.get(); }

  /// Rows of a checkpoint to bf16 in device memory.
  Status upload(const WeightRows& rows, int64_t num_rows, int64_t columns, std::byte* to) {
    const int64_t task_rows = rows_of_task(columns);
    buffers_.resize(static_cast<size_t>(loaders_.num_threads()));
    for (auto& buffer : buffers_) buffer.resize(std::max(buffer.size(), static_cast<size_t>(task_rows * columns)));
    // A task's fp32 rows stay in cache until they are rounded.
    return upload_rows(num_rows, columns, columns * int64_t{sizeof(uint16_t)}, to,
                       [&](int64_t begin, int64_t end, int loader, std::byte* at) {
                         float* values = buffers_[static_cast<size_t>(loader)].data();
                         rows(begin, end, values);
                         auto* out = reinterpret_cast<uint16_t*>(at);
                         for (int64_t i = 0; i < (end - begin) * columns; ++i) out[i] = float_to_bf16(values[i]);
                       });
  }
  /// e4m3 codes to device memory, their scales to `scales`, [num_rows, columns / kFp8Group].
  Status upload(const Fp8WeightRows& rows, int64_t num_rows, int64_t columns, std::byte* to, float* scales) {
    return upload_rows(num_rows, columns, columns, to, [&](int64_t begin, int64_t end, int, std::byte* at) {
      rows(begin, end, reinterpret_cast<uint8_t*>(at), scales + begin * (columns / kFp8Group));
    });
  }

 private:
  struct Staging {
    DeviceBuffer memory;
    cudaEvent_t sent = nullptr;
  };

  Context(cudaStream_t stream, ThreadPool& loaders) : stream_(stream), loaders_(loaders) {}

  static int64_t rows_of_task(int64_t columns) { return std::max<int64_t>(1, 65536 / columns); }

  /// What `fill(begin, end, loader, to)` makes of rows, a piece at a time: one is made while the other is sent.
  template <class Fill>
  Status upload_rows(int64_t num_rows, int64_t columns, int64_t row_bytes, std::byte* to, const Fill& fill) {
    if (row_bytes > kStagingBytes)
      return {StatusCode::kUnsupported, fmt::format("a weight with rows of {} values is too wide", columns)};
    const int64_t piece_rows = kStagingBytes / row_bytes, task_rows = rows_of_task(columns);
    for (int64_t begin = 0; begin < num_rows; begin += piece_rows) {
      Staging& staging = staging_[static_cast<size_t>(next_staging_++ % staging_.size())];
      KVANT_RETURN_IF_ERROR(cuda_status(cudaEventSynchronize(staging.sent), "cudaEventSynchronize"));
      const int64_t end = std::min(num_rows, begin + piece_rows);
      loaders_.parallel_for(divide_up(end - begin, task_rows), [&](int64_t task, int loader) {
        const int64_t first = begin + task * task_rows;
        fill(first, std::min(end, first + task_rows), loader, staging.memory.data() + (first - begin) * row_bytes);
      });
      KVANT_RETURN_IF_ERROR(copy_bytes(to + begin * row_bytes, staging.memory.data(), (end - begin) * row_bytes,
                                       Stream::on_cuda(stream_)));
      KVANT_RETURN_IF_ERROR(cuda_status(cudaEventRecord(staging.sent, stream_), "cudaEventRecord"));
    }
    return {};
  }

  cudaStream_t stream_;
  ThreadPool& loaders_;
  bool multiplies_fp8_ = false;
  std::unique_ptr<LtProducts> bf16_;
  std::unique_ptr<Fp8Products> fp8_;
  std::unique_ptr<FewRows> few_rows_;
  std::unique_ptr<BatchRows> batch_rows_;
  std::array<Staging, 2> staging_;
  uint64_t next_staging_ = 0;
  std::vector<std::vector<float>> buffers_;  ///< One per loader.
};

class CudaLinear final : public Linear {
 public:
  CudaLinear(Context& context, int64_t out_features, int64_t in_features, DeviceBuffer weight,
             std::optional<FewRowsWeight> few_rows, std::optional<BatchRowsWeight> batch_rows)
      : context_(context),
        out_features_(out_features),
        in_features_(in_features),
        weight_(std::move(weight)),
        few_rows_(few_rows),
        batch_rows_(batch_rows) {}

  Status run(const LinearArgs& args, Stream stream) override {
    if (args.num_rows == 0) return {};
    if (args.num_rows == 1 && in_features_ % 8 == 0)
      return multiply_one_row({.weight = weight_.data(),
                               .x = args.x,
                               .y = args.y,
                               .out_features = out_features_,
                               .in_features = in_features_,
                               .output = args.output},
                              stream.cuda);
    const auto multiply = [&](auto& products, const auto& weight) {
      return products.multiply({.weight = &weight,
                                .x = args.x,
                                .y = args.y,
                                .num_rows = args.num_rows,
                                .output = args.output,
                                .gate = args.gate},
                               stream.cuda);
    };
    if (few_rows_ && few_rows_->takes(args.num_rows)) return multiply(*context_.few_rows(), *few_rows_);
    if (batch_rows_ && batch_rows_->takes(args.num_rows, args.output))
      return multiply(*context_.batch_rows(), *batch_rows_);
    KVANT_ASSIGN_OR_RETURN(const LtProduct* product, context_.bf16().find({.out_features = out_features_,
                                                                           .in_features = in_features_,
                                                                           .num_rows = args.num_rows,
                                                                           .output = args.output}));
    return product->run(weight_.data(), args.x, args.y, stream.cuda);
  }

  bool gates(int64_t num_rows) const override {
    if (num_rows <= 1) return false;
    if (few_rows_ && few_rows_->takes(num_rows)) return few_rows_->gates(num_rows);
    return batch_rows_ && batch_rows_->takes(num_rows, LinearOutput::kGated);
  }

  int64_t out_features() const override { return out_features_; }
  int64_t in_features() const override { return in_features_; }
  int64_t weight_bytes() const override { return weight_.bytes(); }
  const void* plain_rows() const override { return weight_.data(); }

 private:
  Context& context_;
  int64_t out_features_;
  int64_t in_features_;
  DeviceBuffer weight_;
  std::optional<FewRowsWeight> few_rows_;
  std::optional<BatchRowsWeight> batch_rows_;
};

/// e4m3 codes; x is rounded to e4m3 too.
class Fp8Linear final : public Linear {
 public:
  Fp8Linear(Context& context, Fp8DeviceWeight weight) : context_(context), weight_(std::move(weight)) {}

  Status run(const LinearArgs& args, Stream stream) override {
    return args.num_rows == 0 ? Status{} : context_.fp8().multiply(weight_, args, stream.cuda);
  }
  int64_t out_features() const override { return weight_.out_features; }
  int64_t in_features() const override { return weight_.in_features; }
  int64_t weight_bytes() const override {
    return weight_.codes.bytes() + weight_.scales.bytes() + weight_.block_scales.bytes();
  }

 private:
  Context& context_;
  Fp8DeviceWeight weight_;
};

/// Scales of rows as the library wants them, of the transposed matrix.
std::vector<float> transposed_scales(const std::vector<float>& scales, int64_t num_rows, int64_t groups) {
  std::vector<float> out(scales.size());
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t group = 0; group < groups; ++group)
      out[static_cast<size_t>(group * num_rows + row)] = scales[static_cast<size_t>(row * groups + group)];
  return out;
}

/// Scales of 128 x 128 blocks, where all rows of a block have the same, in rows of whole vectors; else none.
std::vector<float> scales_of_blocks(const std::vector<float>& scales, int64_t num_rows, int64_t groups) {
  if (num_rows % kFp8Group != 0) return {};
  const int64_t padded = divide_up(groups, 4) * 4;
  std::vector<float> out(static_cast<size_t>(num_rows / kFp8Group * padded));
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      const float scale = scales[static_cast<size_t>(row * groups + group)];
      float& of_block = out[static_cast<size_t>(row / kFp8Group * padded + group)];
      if (row % kFp8Group == 0) of_block = scale;
      if (of_block != scale) return {};
    }
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<LinearContext>> create_linear_context(void* stream, ThreadPool& loaders) {
  return Context::create(stream, loaders);
}

Result<std::unique_ptr<Linear>> create_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                              LinearContext* context) {
  auto* shared = dynamic_cast<Context*>(context);
  KVANT_CHECK(shared != nullptr);
  const int64_t bytes = out_features * in_features * int64_t{sizeof(uint16_t)};
  KVANT_ASSIGN_OR_FAIL(DeviceBuffer weight, DeviceBuffer::create(MemoryKind::kCuda, bytes, "weights"));
  KVANT_FAIL_IF_ERROR(shared->upload(rows, out_features, in_features, weight.data()));
  std::optional<FewRowsWeight> few_rows;
  if (const FewRows* few = shared->few_rows(); few != nullptr) {
    KVANT_ASSIGN_OR_FAIL(few_rows, few->describe(weight.data(), out_features, in_features));
  }
  std::optional<BatchRowsWeight> batch_rows;
  if (const BatchRows* batch = shared->batch_rows(); batch != nullptr) {
    KVANT_ASSIGN_OR_FAIL(batch_rows, batch->describe(weight.data(), out_features, in_features));
  }
  return std::make_unique<CudaLinear>(*shared, out_features, in_features, std::move(weight), few_rows, batch_rows);
}

Result<std::unique_ptr<Linear>> create_fp8_linear(int64_t out_features, int64_t in_features, const Fp8WeightRows& rows,
                                                  int64_t max_rows, Stream stream, LinearContext* context) {
  auto* shared = dynamic_cast<Context*>(context);
  KVANT_CHECK(shared != nullptr);
  KVANT_FAIL_IF_ERROR(shared->fp8().reserve(max_rows, in_features));
  const int64_t groups = in_features / kFp8Group;
  Fp8DeviceWeight weight{
      .out_features = out_features, .in_features = in_features, .codes = {}, .scales = {}, .block_scales = {}};
  KVANT_ASSIGN_OR_FAIL(weight.codes, DeviceBuffer::create(MemoryKind::kCuda, out_features * in_features, "weights"));
  std::vector<float> scales(static_cast<size_t>(out_features * groups));
  KVANT_FAIL_IF_ERROR(shared->upload(rows, out_features, in_features, weight.codes.data(), scales.data()));
  KVANT_ASSIGN_OR_FAIL(weight.scales,
                       upload(transposed_scales(scales, out_features, groups), "scales of weights", stream));
  if (const std::vector<float> blocks = scales_of_blocks(scales, out_features, groups); !blocks.empty()) {
    KVANT_ASSIGN_OR_FAIL(weight.block_scales, upload(blocks, "scales of weights", stream));
  }
  return std::make_unique<Fp8Linear>(*shared, std::move(weight));
}

}  // namespace kvant::ops::cuda
