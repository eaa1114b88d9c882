#include "ops/cuda/few_rows.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>

#include "core/cuda_status.h"
#include "core/overlapped_launch.h"
#include "ops/cuda/few_rows.cuh"
#include "ops/cuda/hopper_device.h"
#include "ops/divide_up.h"

namespace kvant::ops::cuda {
namespace {

using Any = FewRowsTraits<kMostFewRows, 1>;  // what all of them share, and the most sums that go through memory

/// What the kernel is built for.
struct Kernel {
  void (*run)(FewRowsParams);
  int32_t rows, outputs, threads;  // of a tile, at most
  bool whole_tiles;
};
template <int kRows, int kWarpgroups>
constexpr Kernel kernel() {
  using Traits = FewRowsTraits<kRows, kWarpgroups>;
  static_assert(Traits::kSharedBytes == Any::kSharedBytes, "all have as much");
  return {few_rows_kernel<Traits>, kRows, Traits::kMostOutputs, Traits::kThreads, Traits::kWholeTiles};
}
constexpr Kernel kKernels[] = {kernel<8, 1>(),  kernel<16, 1>(), kernel<32, 1>(), kernel<64, 1>(),
                               kernel<64, 2>(), kernel<64, 3>(), kernel<64, 4>()};
constexpr FewRowsCut kShares{.outputs = Any::kMostOutputs};  // of up to kMostFewRows
constexpr int32_t kMostOutputs = 256;

/// The smallest that holds them, or null.
const Kernel* find_kernel(int64_t rows, int32_t outputs) {
  for (const Kernel& kernel : kKernels)
    if (kernel.rows >= rows && kernel.outputs >= outputs) return &kernel;
  return nullptr;
}

/// As many as there are multiprocessors, or a few less where more of them then end with a tile.
int32_t choose_num_shares(int32_t num_tiles, int32_t num_units, int32_t num_multiprocessors) {
  constexpr int32_t kLeastUnits = 4;
  const int32_t most = std::clamp(num_units / kLeastUnits, 1, num_multiprocessors);
  int32_t best = most;
  for (int32_t shares = most - 1; shares >= most - most / 32; --shares)
    if (std::gcd(num_tiles, shares) > std::gcd(num_tiles, best)) best = shares;
  return best;
}

int32_t choose_num_blocks(const Kernel& kernel, const FewRowsParams& params, int32_t split,
                          int32_t num_multiprocessors) {
  const int32_t num_tiles = params.num_units / params.num_chunks;
  if (split > 1) return num_tiles * split;
  if (!kernel.whole_tiles) return choose_num_shares(num_tiles, params.num_units, num_multiprocessors);
  return static_cast<int32_t>(divide_up(num_tiles, divide_up(num_tiles, num_multiprocessors)));
}

/// Clusters of so many blocks that run at once. Some groups of multiprocessors are smaller than others, so they can be
/// fewer than all multiprocessors would hold.
Result<int32_t> count_clusters(unsigned split) {
  // A block fills a multiprocessor, whatever the kernel.
  const Kernel& kernel = *std::prev(std::end(kKernels));
  const OverlappedLaunch launch(split, static_cast<unsigned>(kernel.threads), Any::kSharedBytes, false, nullptr, split);
  int count = 0;
  KVANT_FAIL_IF_ERROR(cuda_status(cudaOccupancyMaxActiveClusters(&count, kernel.run, launch.config()),
                                  "cudaOccupancyMaxActiveClusters"));
  return count;
}

Result<FewRowsForm> make_form(const void* weight, int64_t out_features, int64_t in_features, FewRowsCut cut) {
  FewRowsForm form{.cut = cut};
  if (cut.outputs == 0) return form;
  const MatrixBoxes boxes{.matrix = weight,
                          .num_rows = out_features,
                          .num_columns = in_features,
                          .box_rows = cut.outputs,
                          .box_columns = kChunk};
  KVANT_ASSIGN_OR_FAIL(form.map, make_tensor_map(boxes));
  if (out_features % 16 == 0 && cut.outputs % 16 == 0) {
    KVANT_ASSIGN_OR_FAIL(form.gated_map, make_gated_tensor_map(boxes));
  }
  return form;
}

}  // namespace

Result<std::unique_ptr<FewRows>> FewRows::create(void* stream) {
  std::unique_ptr<FewRows> few(new FewRows());
  KVANT_ASSIGN_OR_FAIL(few->num_multiprocessors_, hopper_multiprocessors());
  if (few->num_multiprocessors_ == 0) return nullptr;
  for (const Kernel& kernel : kKernels)
    KVANT_FAIL_IF_ERROR(
        cuda_status(cudaFuncSetAttribute(kernel.run, cudaFuncAttributeMaxDynamicSharedMemorySize, Any::kSharedBytes),
                    "cudaFuncSetAttribute"));
  few->most_clusters_[1] = few->num_multiprocessors_;
  for (unsigned split = 2; split <= kMostSplit; ++split) {
    KVANT_ASSIGN_OR_FAIL(few->most_clusters_[split], count_clusters(split));
  }
  const int64_t bytes = int64_t{few->num_multiprocessors_} * Any::kQuads * Any::kConsumers * int64_t{sizeof(float4)};
  KVANT_ASSIGN_OR_FAIL(few->sums_, DeviceBuffer::create(MemoryKind::kCuda, bytes, "sums of products"));
  static_assert(detail::kAbsent == 0xffffffffu, "what the next call writes");
  KVANT_FAIL_IF_ERROR(cuda_status(
      cudaMemsetAsync(few->sums_.data(), 0xff, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)),
      "cudaMemsetAsync"));
  return few;
}

FewRowsCut FewRows::choose_cut(int64_t out_features, int64_t in_features) const {
  const int64_t num_chunks = divide_up(in_features, kChunk);
  // What a block reads, weight and x, over an equal share of the weight: the multiprocessors together read from cache
  // about 1.5 times as fast as weights come from memory.
  constexpr double kMostOverShare = 1.8;
  double least = kMostOverShare * static_cast<double>(out_features * num_chunks) / num_multiprocessors_;
  FewRowsCut best;
  for (int32_t split = 1; split <= std::min<int64_t>(kMostSplit, num_chunks); ++split) {
    const int64_t clusters = most_clusters_[static_cast<size_t>(split)];
    if (clusters == 0) continue;
    const int64_t tiles = split > 1 ? 1 : divide_up(out_features, kMostOutputs * clusters);  // of a block
    const int64_t step = out_features % 16 == 0 ? 16 : 8;
    const int64_t outputs = divide_up(divide_up(out_features, clusters * tiles), step) * step;
    const auto read = static_cast<double>(tiles * divide_up(num_chunks, split) * (outputs + kMostManyRows));
    if (outputs > kMostOutputs || read >= least) continue;
    least = read;
    best = {.outputs = static_cast<int32_t>(outputs), .split = split};
  }
  return best;
}

Result<FewRowsWeight> FewRows::describe(const void* weight, int64_t out_features, int64_t in_features) const {
  const int64_t units = divide_up(out_features, kShares.outputs) * divide_up(in_features, kChunk);
  if (out_features % 8 != 0 || in_features % 8 != 0 ||
      units * (num_multiprocessors_ + 1) > std::numeric_limits<int32_t>::max())
    return FewRowsWeight{.out_features = out_features, .in_features = in_features};
  return describe(weight, out_features, in_features, choose_cut(out_features, in_features));
}

Result<FewRowsWeight> FewRows::describe(const void* weight, int64_t out_features, int64_t in_features, FewRowsCut cut) {
  FewRowsWeight described{.out_features = out_features, .in_features = in_features};
  KVANT_ASSIGN_OR_FAIL(described.few, make_form(weight, out_features, in_features, kShares));
  KVANT_ASSIGN_OR_FAIL(described.many, make_form(weight, out_features, in_features, cut));
  return described;
}

Status FewRows::multiply(const FewRowsArgs& args, void* stream) const {
  const FewRowsWeight& weight = *args.weight;
  const FewRowsForm& form = weight.form(args.num_rows);
  const Kernel* kernel = find_kernel(args.num_rows, form.cut.outputs);
  if (kernel == nullptr || form.cut.outputs == 0) return {StatusCode::kInternal, "a product that is not taken"};
  const bool gated = args.output == LinearOutput::kGated;
  FewRowsParams params{.x = static_cast<const __nv_bfloat16*>(args.x),
                       .y = args.y,
                       .sums = sums_.as<float4>(),
                       .out_features = static_cast<int32_t>(weight.out_features),
                       .in_features = static_cast<int32_t>(weight.in_features),
                       .num_rows = static_cast<int32_t>(args.num_rows),
                       .tile_outputs = form.cut.outputs,
                       .num_stages = stages_of(form.cut.outputs, kernel->rows),
                       .num_chunks = static_cast<int32_t>(divide_up(weight.in_features, kChunk)),
                       .output = args.output,
                       .gate = args.gate};
  std::memcpy(&params.weight, (gated ? form.gated_map : form.map).data(), sizeof(params.weight));
  params.num_units = static_cast<int32_t>(divide_up(weight.out_features, form.cut.outputs)) * params.num_chunks;
  const int32_t num_blocks = choose_num_blocks(*kernel, params, form.cut.split, num_multiprocessors_);
  const OverlappedLaunch launch(static_cast<unsigned>(num_blocks), static_cast<unsigned>(kernel->threads),
                                Any::kSharedBytes, true, stream, static_cast<unsigned>(form.cut.split));
  return cuda_status(cudaLaunchKernelEx(launch.config(), kernel->run, params), "the launch of the few-rows kernel");
}

}  // namespace kvant::ops::cuda
