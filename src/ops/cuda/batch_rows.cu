#include "ops/cuda/batch_rows.h"

#include <algorithm>
#include <cstring>

#include "core/cuda_status.h"
#include "core/overlapped_launch.h"
#include "ops/cuda/batch_rows.cuh"
#include "ops/cuda/hopper_device.h"
#include "ops/divide_up.h"

namespace kvant::ops::cuda {
namespace {

constexpr int32_t kMostOutputs = 192, kMostWarps = 12;

/// What the kernel is built for.
struct Kernel {
  void (*run)(BatchRowsParams);
  int32_t rows, outputs;  // of a tile
  int32_t threads, shared_bytes;
};
template <int kWarpgroups, int kRowBlocks, int kOutputs>
constexpr Kernel kernel() {
  using Traits = BatchRowsTraits<kWarpgroups, kRowBlocks, kOutputs>;
  static_assert(Traits::kWarps <= kMostWarps && kOutputs <= kMostOutputs);
  return {batch_rows_kernel<Traits>, Traits::kRows, kOutputs, Traits::kThreads, Traits::kSharedBytes};
}
constexpr Kernel kKernels[] = {kernel<2, 1, 96>(),  kernel<2, 1, 128>(), kernel<2, 1, 192>(), kernel<3, 1, 96>(),
                               kernel<3, 1, 128>(), kernel<3, 1, 192>(), kernel<2, 2, 192>()};

/// The smallest that holds them, or null.
const Kernel* find_kernel(int64_t rows, int32_t outputs) {
  for (const Kernel& kernel : kKernels)
    if (kernel.rows >= rows && kernel.outputs == outputs) return &kernel;
  return nullptr;
}

/// Slices of one round of tiles that leave few multiprocessors without work, each long enough for what it costs to put
/// them together. Whole tiles gain nothing unless they gate.
BatchRowsCut choose_plain_cut(int64_t out_features, int64_t in_features, int64_t num_multiprocessors) {
  constexpr int64_t kLeastChunks = 48;
  constexpr double kMostOverShare = 1.15;
  const int64_t num_chunks = divide_up(in_features, kChunk);
  double least =
      kMostOverShare * static_cast<double>(out_features * num_chunks) / static_cast<double>(num_multiprocessors);
  BatchRowsCut best;
  for (const int32_t outputs : {96, 128}) {
    for (int32_t split = 2; split <= kMostBatchSplit; ++split) {
      const int64_t chunks = divide_up(num_chunks, split);
      if (chunks < kLeastChunks || divide_up(out_features, outputs) * split > num_multiprocessors) continue;
      const auto work = static_cast<double>(chunks * outputs);
      if (work >= least) continue;
      least = work;
      best = {.outputs = outputs, .split = split};
    }
  }
  return best;
}

/// A tile for nearly every multiprocessor: another round would take as long as the first.
BatchRowsCut choose_gated_cut(int64_t out_features, int64_t num_multiprocessors) {
  const int64_t num_tiles = divide_up(out_features, kMostOutputs);
  const bool fits =
      out_features % 16 == 0 && num_tiles <= num_multiprocessors && 10 * num_tiles >= 9 * num_multiprocessors;
  return fits ? BatchRowsCut{.outputs = kMostOutputs} : BatchRowsCut{};
}

Status make_maps(const void* weight, BatchRowsWeight& described) {
  MatrixBoxes boxes{.matrix = weight,
                    .num_rows = described.out_features,
                    .num_columns = described.in_features,
                    .box_columns = kChunk};
  if (described.plain.cut.outputs > 0) {
    boxes.box_rows = described.plain.cut.outputs;
    KVANT_ASSIGN_OR_RETURN(described.plain.map, make_tensor_map(boxes));
  }
  if (described.gated.cut.outputs > 0) {
    boxes.box_rows = described.gated.cut.outputs;
    KVANT_ASSIGN_OR_RETURN(described.gated.map, make_gated_tensor_map(boxes));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<BatchRows>> BatchRows::create() {
  std::unique_ptr<BatchRows> batch(new BatchRows());
  KVANT_ASSIGN_OR_FAIL(batch->num_multiprocessors_, hopper_multiprocessors());
  if (batch->num_multiprocessors_ == 0) return nullptr;
  for (const Kernel& kernel : kKernels)
    KVANT_FAIL_IF_ERROR(
        cuda_status(cudaFuncSetAttribute(kernel.run, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
                    "cudaFuncSetAttribute"));
  const int64_t sums_bytes =
      int64_t{batch->num_multiprocessors_} * kMostSlicedRows * kMostSlicedOutputs * int64_t{sizeof(float)};
  const int64_t counts_bytes = int64_t{batch->num_multiprocessors_} * kMostWarps * int64_t{sizeof(uint32_t)};
  KVANT_ASSIGN_OR_FAIL(batch->sums_, DeviceBuffer::create(MemoryKind::kCuda, sums_bytes, "sums of products"));
  KVANT_ASSIGN_OR_FAIL(batch->counts_, DeviceBuffer::create(MemoryKind::kCuda, counts_bytes, "counts of sums"));
  return batch;
}

Result<BatchRowsWeight> BatchRows::describe(const void* weight, int64_t out_features, int64_t in_features) const {
  BatchRowsWeight described{.out_features = out_features, .in_features = in_features, .plain = {}, .gated = {}};
  if (out_features % 8 != 0 || in_features % 8 != 0) return described;
  described.plain.cut = choose_plain_cut(out_features, in_features, num_multiprocessors_);
  described.gated.cut = choose_gated_cut(out_features, num_multiprocessors_);
  KVANT_FAIL_IF_ERROR(make_maps(weight, described));
  return described;
}

Result<BatchRowsWeight> BatchRows::describe(const void* weight, int64_t out_features, int64_t in_features,
                                            BatchRowsCut cut) {
  BatchRowsWeight described{.out_features = out_features, .in_features = in_features, .plain = {}, .gated = {}};
  described.plain.cut = cut;
  if (out_features % 16 == 0) described.gated.cut = cut;
  KVANT_FAIL_IF_ERROR(make_maps(weight, described));
  return described;
}

Status BatchRows::multiply(const BatchRowsArgs& args, void* stream) const {
  const BatchRowsWeight& weight = *args.weight;
  const BatchRowsForm& form = weight.form(args.output);
  const BatchRowsCut cut = form.cut;
  const Kernel* kernel = find_kernel(args.num_rows, cut.outputs);
  const int64_t num_blocks = cut.outputs == 0 ? 0 : divide_up(weight.out_features, cut.outputs) * cut.split;
  const int64_t num_chunks = divide_up(weight.in_features, kChunk);
  const bool sliced = cut.split > 1;
  if (kernel == nullptr || (sliced && (cut.outputs > kMostSlicedOutputs || num_blocks > num_multiprocessors_ ||
                                       cut.split > std::min<int64_t>(kMostBatchSplit, num_chunks))))
    return {StatusCode::kInternal, "a product that is not taken"};
  BatchRowsParams params{.y = args.y,
                         .sums = sums_.as<float4>(),
                         .counts = counts_.as<uint32_t>(),
                         .out_features = static_cast<int32_t>(weight.out_features),
                         .num_rows = static_cast<int32_t>(args.num_rows),
                         .num_chunks = static_cast<int32_t>(num_chunks),
                         .split = cut.split,
                         .output = args.output,
                         .gate = args.gate};
  std::memcpy(&params.weight, form.map.data(), sizeof(params.weight));
  KVANT_ASSIGN_OR_RETURN(const TensorMap x, make_tensor_map({.matrix = args.x,
                                                             .num_rows = args.num_rows,
                                                             .num_columns = weight.in_features,
                                                             .box_rows = static_cast<int32_t>(args.num_rows),
                                                             .box_columns = kChunk}));
  std::memcpy(&params.x, x.data(), sizeof(params.x));
  const OverlappedLaunch launch(static_cast<unsigned>(num_blocks), static_cast<unsigned>(kernel->threads),
                                static_cast<size_t>(kernel->shared_bytes), true, stream);
  return cuda_status(cudaLaunchKernelEx(launch.config(), kernel->run, params), "the launch of the batch-rows kernel");
}

}  // namespace kvant::ops::cuda
