#include "attn/cuda/shared_route.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "attn/cuda/launch_config.h"
#include "attn/cuda/launch_params.h"
#include "attn/cuda/sm90/decode_shared.h"

namespace kvant::attn::cuda {
namespace {

/// The workspace's counters: those of the decode kernel's items, then those of requests by KV heads.
constexpr int32_t kRowCounters = kMaxDecodeBlocks;
constexpr int32_t kMaxShared = kNumCounters - kRowCounters;
/// Batches that plain kernels work on in clusters are faster there.
constexpr int32_t kFewestRequests = 4;

struct SharedCut {
  WorkspaceCut decode;
  size_t part_out = 0, part_state = 0, own_out = 0, own_lse = 0, bytes = 0;
};

size_t num_rows(const AttnDesc& desc, const AttnLimits& limits) {
  return static_cast<size_t>(limits.max_tokens) * static_cast<size_t>(desc.num_q_heads);
}

SharedCut cut_shared(const SharedDecodeInstance& instance, int32_t num_blocks, const AttnDesc& desc,
                     const AttnLimits& limits) {
  const size_t rows = num_rows(desc, limits), row_bytes = static_cast<size_t>(instance.head_dim) * sizeof(float);
  SharedCut cut;
  cut.decode = cut_workspace(instance.image().teams * num_blocks, 8 * instance.row_tiles, instance.head_dim);
  cut.part_out = cut.decode.bytes;
  cut.part_state = cut.part_out + aligned(kMaxSharedParts * rows * row_bytes);
  cut.own_out = cut.part_state + aligned(kMaxSharedParts * rows * sizeof(float2));
  cut.own_lse = cut.own_out + aligned(rows * row_bytes);
  cut.bytes = cut.own_lse + aligned(rows * sizeof(float));
  return cut;
}

/// Measured on an H200.
SharedCosts costs_of(KvFormat format) {
  switch (format) {
    case KvFormat::kE4m3: return {.tile = 12.3f, .unit = 140.0f};
    case KvFormat::kNvfp4: return {.tile = 15.9f, .unit = 110.0f};
    case KvFormat::kBf16:
    case KvFormat::kF16:
    case KvFormat::kF32:
    case KvFormat::kE5m2: break;
  }
  return {.tile = 6.8f, .unit = 63.0f};
}

SharedRows shared_rows(const AttnPlan& plan, const AttnArgs& args, const SharedCut& cut) {
  const AttnDesc& desc = plan.desc();
  std::byte* base = workspace_base(plan);
  SharedRows rows{};
  rows.runs = args.shared_runs;
  rows.q_offsets = args.q_offsets;
  rows.part_out = reinterpret_cast<float*>(base + cut.part_out);
  rows.part_state = reinterpret_cast<float2*>(base + cut.part_state);
  rows.part_stride = static_cast<int64_t>(num_rows(desc, plan.limits()));
  rows.own_out = reinterpret_cast<float*>(base + cut.own_out);
  rows.own_lse = reinterpret_cast<float*>(base + cut.own_lse);
  rows.out = args.out;
  rows.lse = args.lse;
  rows.sinks = desc.sinks ? args.sinks : nullptr;
  rows.counters = reinterpret_cast<uint32_t*>(base) + kRowCounters;
  rows.num_requests = args.num_requests;
  rows.num_kv_heads = desc.layout.num_kv_heads;
  rows.group = desc.num_q_heads / desc.layout.num_kv_heads;
  rows.page_shift = std::countr_zero(static_cast<uint32_t>(desc.layout.page_size));
  rows.head_dim = desc.layout.head_dim_v;
  rows.out_dtype = desc.out_dtype;
  return rows;
}

}  // namespace

Status add_shared_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device, int32_t row_tiles,
                        AttentionRoute& route) {
  if (!limits.shared_runs || device.compute_capability != 90 || desc.window > 0) return {};
  if (int64_t{limits.max_requests} * desc.layout.num_kv_heads > kMaxShared) return {};
  // Batches that can save little are faster with plain kernels, whatever their runs say.
  const int64_t max_keys = int64_t{limits.max_pages_per_request} * desc.layout.page_size;
  if ((limits.max_requests - 1) * max_keys < limits.min_saved_keys) return {};
  const auto instances = decode_shared_instances();
  const auto instance = std::find_if(instances.begin(), instances.end(), [&](const SharedDecodeInstance& i) {
    return i.format == desc.layout.k_format && i.head_dim == desc.layout.head_dim_k && i.row_tiles == row_tiles &&
           i.exact_pages == desc.exact_pages;
  });
  if (instance == instances.end()) return {};
  const KernelImage image = instance->image();
  const int32_t bytes = instance->shared_bytes(limits.max_requests);
  if (bytes > device.shared_memory_per_block) return {};
  KVANT_ASSIGN_OR_RETURN(const int32_t num_blocks, count_blocks(image, bytes, kMaxDecodeBlocks / image.teams, device));
  route.launch.shared_kernel = static_cast<int32_t>(instance - instances.begin());
  route.launch.shared_num_blocks = num_blocks;
  route.launch.shared_kernel_bytes = bytes;
  route.workspace_bytes =
      std::max(route.workspace_bytes, cut_shared(*instance, num_blocks, desc, limits).bytes + kWorkspaceAlignment);
  return {};
}

bool shares_pages(const AttnPlan& plan, const AttnArgs& args) {
  return plan.launch().shared_kernel >= 0 && args.shared_runs != nullptr && args.num_requests >= kFewestRequests;
}

Status launch_shared(const AttnPlan& plan, const AttnArgs& args, void* stream) {
  const AttnDesc& desc = plan.desc();
  const AttnLaunch& config = plan.launch();
  const SharedDecodeInstance& instance = decode_shared_instances()[static_cast<size_t>(config.shared_kernel)];
  const KernelImage image = instance.image();
  const SharedCut cut = cut_shared(instance, config.shared_num_blocks, desc, plan.limits());
  SharedDecodeParams params{};
  static_cast<DecodeParams&>(params.decode) = common_params<DecodeParams>(plan, args, cut.decode);
  set_pools(params.decode, desc, args.cache);
  params.decode.shared = shared_rows(plan, args, cut);
  // Rows of a run see all of its pages' keys, which are this rank's.
  PrefillParams& prefix = params.prefix;
  prefix = common_params<PrefillParams>(plan, args, cut.decode);
  set_pools(prefix, desc, args.cache);
  prefix.sinks = nullptr;
  prefix.mask = nullptr;
  prefix.positions = nullptr;
  prefix.draft_mask = DraftMask::kFull;
  prefix.cp_rank = 0, prefix.cp_size = prefix.cp_interleave = 1;
  params.costs = costs_of(instance.format);
  return launch_blocks(plan, image, config.shared_num_blocks, config.shared_kernel_bytes, &params, true, stream);
}

Status check_shared_images(const DeviceInfo& device) {
  if (device.compute_capability != 90) return {};
  for (const SharedDecodeInstance& instance : decode_shared_instances()) {
    const std::string name = fmt::format("kernel for shared pages {}_d{}_r{}", to_string(instance.format),
                                         instance.head_dim, instance.row_tiles);
    KVANT_RETURN_IF_ERROR(check_image(name, instance.image(), device));
  }
  return {};
}

}  // namespace kvant::attn::cuda
