#include "attn/cuda/backend.h"

#include <array>
#include <bit>
#include <cstdint>

#include <fmt/format.h>

#include "attn/common/host_args.h"
#include "attn/common/kernel_rows.h"
#include "attn/cuda/common/cuda_status.h"
#include "attn/cuda/generic/decode_splitkv.h"
#include "attn/cuda/launch_config.h"
#include "attn/cuda/launch_params.h"
#include "attn/cuda/prefill_route.h"
#include "attn/cuda/shared_route.h"

namespace kvant::attn::cuda {
namespace {

/// Each block sums all requests' work in shared memory.
constexpr int32_t kMaxRequests = 4096;

WorkspaceCut workspace_cut(const DecodeInstance& instance, int32_t num_blocks) {
  return cut_workspace(num_blocks, 8 * instance.row_tiles, instance.head_dim);
}

/// Eight rows a tile: the fewest tiles that hold an item's rows read its keys once.
int32_t row_tiles(const AttnDesc& desc, const AttnLimits& limits) {
  const int64_t rows = int64_t{limits.max_query_len} * (desc.num_q_heads / desc.layout.num_kv_heads);
  return rows <= 8 ? 1 : rows <= 16 ? 2 : 4;
}

/// Pages of a tile each with rows of a head side by side, and scores that are not capped.
bool takes_tile_pages(const AttnDesc& desc) {
  const KvLayout& layout = desc.layout;
  return layout.page_size == 16 && plane_strides(layout, false).data_token == layout.k_row_bytes() &&
         plane_strides(layout, true).data_token == layout.v_row_bytes() && desc.soft_cap == 0.0f;
}

std::string name_of(const DecodeInstance& instance) {
  return fmt::format("{}_d{}_r{}{}{}", to_string(instance.format), instance.head_dim, instance.row_tiles,
                     instance.exact_pages ? "_exact" : "", instance.tile_pages ? "_tile_pages" : "");
}

Result<int32_t> find_instance(const AttnDesc& desc, const AttnLimits& limits) {
  const auto instances = decode_splitkv_instances();
  for (size_t i = 0; i < instances.size(); ++i) {
    const DecodeInstance& instance = instances[i];
    if (instance.format == desc.layout.k_format && instance.head_dim == desc.layout.head_dim_k &&
        instance.row_tiles == row_tiles(desc, limits) && instance.exact_pages == desc.exact_pages &&
        (!instance.tile_pages || takes_tile_pages(desc)))
      return static_cast<int32_t>(i);
  }
  return failure(StatusCode::kInternal, fmt::format("the kernel table offers {} with {} row tiles, which is not built",
                                                    desc.layout.to_string(), row_tiles(desc, limits)));
}

int32_t teams_bytes(const KernelImage& teams, const AttnLimits& limits) {
  return teams.shared_bytes + teams.teams * decode_prefix_bytes(limits.max_requests);
}

bool has_teams(const KernelImage& teams, const DeviceInfo& device) {
  return teams.function != nullptr && device.compute_capability >= 90 &&
         teams.shared_bytes <= device.shared_memory_per_block;
}

/// The grid for many requests: teams where they are as many as the blocks would be.
Status set_many_grid(const DecodeInstance& instance, const AttnLimits& limits, const DeviceInfo& device,
                     AttnLaunch& launch) {
  const KernelImage many = instance.image(DecodeVariant::kMany), teams = instance.image(DecodeVariant::kTeams);
  launch.many_shared_bytes = many.shared_bytes + decode_prefix_bytes(limits.max_requests);
  KVANT_ASSIGN_OR_RETURN(launch.many_num_blocks,
                         count_blocks(many, launch.many_shared_bytes, kMaxDecodeBlocks, device));
  const int32_t bytes = teams_bytes(teams, limits);
  if (!has_teams(teams, device) || bytes > device.shared_memory_per_block) return {};
  KVANT_ASSIGN_OR_RETURN(const int32_t blocks,
                         count_blocks(teams, bytes, launch.many_num_blocks / teams.teams, device));
  if (blocks * teams.teams != launch.many_num_blocks) return {};
  launch.in_teams = true;
  launch.many_num_blocks = blocks;
  launch.many_shared_bytes = bytes;
  return {};
}

/// Blocks of the kernel in the largest launch.
int32_t most_blocks(const DecodeInstance& instance, const AttnLaunch& launch) {
  const int32_t teams = launch.in_teams ? instance.image(DecodeVariant::kTeams).teams : 1;
  return std::max(launch.num_blocks, launch.many_num_blocks * teams);
}

Result<AttentionRoute> decode_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device) {
  if (limits.max_requests > kMaxRequests) {
    return failure(StatusCode::kUnsupported,
                   fmt::format("needed: {} requests in a run; offered on CUDA: up to {}; split the batch",
                               limits.max_requests, kMaxRequests));
  }
  KVANT_ASSIGN_OR_FAIL(const int32_t index, find_instance(desc, limits));
  const DecodeInstance& instance = decode_splitkv_instances()[static_cast<size_t>(index)];
  const KernelImage image = instance.image(DecodeVariant::kFew);
  const int32_t shared_bytes = image.shared_bytes + decode_prefix_bytes(limits.max_requests);
  KVANT_ASSIGN_OR_FAIL(const int32_t num_blocks, count_blocks(image, shared_bytes, kMaxDecodeBlocks, device));
  AttentionRoute route;
  route.launch = {.kernel = index, .num_blocks = num_blocks, .shared_bytes = shared_bytes};
  if (limits.max_requests > kFewRequests) KVANT_FAIL_IF_ERROR(set_many_grid(instance, limits, device, route.launch));
  if (device.compute_capability >= 90 && instance.row_tiles <= 2) {
    KVANT_FAIL_IF_ERROR(spread_clusters(image));  // So as to be counted.
    std::array<int32_t, 3>& blocks = route.launch.cluster_blocks;
    KVANT_ASSIGN_OR_FAIL(blocks[0], count_cluster_blocks(image, shared_bytes, 2, num_blocks));
    KVANT_ASSIGN_OR_FAIL(blocks[1], count_cluster_blocks(image, shared_bytes, 4, num_blocks));
    KVANT_ASSIGN_OR_FAIL(blocks[2], count_cluster_blocks(image, shared_bytes, 8, num_blocks));
  }
  route.workspace_bytes = workspace_cut(instance, most_blocks(instance, route.launch)).bytes + kWorkspaceAlignment;
  KVANT_FAIL_IF_ERROR(add_shared_route(desc, limits, device, instance.row_tiles, route));
  route.name = name_of(instance);
  return route;
}

/// Blocks of a cluster, 1 where they are alone. A cluster merges what its blocks have summed up without a detour
/// through global memory, but parts of an item are whole clusters, so it is for few items and where most blocks still
/// have work. Numbers are measured.
int32_t cluster_of(const AttnPlan& plan, int32_t num_requests) {
  const AttnLaunch& config = plan.launch();
  const DecodeInstance& instance = decode_splitkv_instances()[static_cast<size_t>(config.kernel)];
  const AttnDesc& desc = plan.desc();
  const int64_t rows = int64_t{plan.limits().max_query_len} * (desc.num_q_heads / desc.layout.num_kv_heads);
  const int64_t rows_an_item = int64_t{8} * instance.row_tiles;
  const int64_t items = (rows + rows_an_item - 1) / rows_an_item * desc.layout.num_kv_heads * num_requests;
  if (num_requests > kFewRequests || items == 0) return 1;
  for (const int32_t size : {8, 4, 2}) {
    const int64_t blocks =
        config.cluster_blocks[static_cast<size_t>(std::countr_zero(static_cast<uint32_t>(size)) - 1)];
    const int64_t blocks_an_item = blocks / items / size * size;
    // With one row tile, pairs of blocks pay where each item has one alone.
    if (size == 2 && instance.row_tiles == 1 && blocks_an_item > size) break;
    if (8 * blocks_an_item * items >= 7 * config.num_blocks) return size;
  }
  return 1;
}

Status launch_decode(const AttnPlan& plan, const AttnArgs& args, void* stream) {
  const AttnDesc& desc = plan.desc();
  if (shares_pages(plan, args)) return launch_shared(plan, args, stream);
  const DecodeInstance& instance = decode_splitkv_instances()[static_cast<size_t>(plan.launch().kernel)];
  const AttnLaunch& config = plan.launch();
  const WorkspaceCut cut = workspace_cut(instance, most_blocks(instance, config));
  auto params = common_params<DecodeParams>(plan, args, cut);
  params.num_tokens = args.num_tokens;
  set_pools(params, desc, args.cache);
  // Blocks start while the stream's previous kernel ends, and wait for it before they touch memory.
  const bool overlap = plan.device().compute_capability >= 90;
  if (args.num_requests > kFewRequests) {
    const KernelImage image = instance.image(config.in_teams ? DecodeVariant::kTeams : DecodeVariant::kMany);
    return launch_blocks(plan, image, config.many_num_blocks, config.many_shared_bytes, &params, overlap, stream);
  }
  return launch(plan, instance.image(DecodeVariant::kFew), &params, overlap, stream,
                cluster_of(plan, args.num_requests));
}

}  // namespace

Result<AttentionRoute> attention_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device,
                                       const KernelRow& row) {
  KVANT_FAIL_IF_ERROR(check_current_device(device));
  return row.name.starts_with(kPrefillFlashName) ? prefill_route(desc, limits, device)
                                                 : decode_route(desc, limits, device);
}

Status check_kernel_images(const DeviceInfo& device) {
  KVANT_RETURN_IF_ERROR(check_current_device(device));
  for (const DecodeInstance& instance : decode_splitkv_instances()) {
    const std::string name = "decode kernel " + name_of(instance);
    for (const DecodeVariant variant : {DecodeVariant::kFew, DecodeVariant::kMany, DecodeVariant::kTeams}) {
      const KernelImage image = instance.image(variant);
      if (variant == DecodeVariant::kTeams && !has_teams(image, device)) continue;
      KVANT_RETURN_IF_ERROR(check_image(name, image, device));
    }
  }
  KVANT_RETURN_IF_ERROR(check_shared_images(device));
  return check_prefill_images(device);
}

Status prepare(const AttnPlan& plan, void* stream) {
  return cuda_status(
      cudaMemsetAsync(workspace_base(plan), 0, kNumCounters * sizeof(uint32_t), static_cast<cudaStream_t>(stream)),
      "cudaMemsetAsync of the workspace's counters");
}

Status attention(const AttnPlan& plan, const AttnArgs& args, void* stream) {
  KVANT_RETURN_IF_ERROR(check_host_args(plan.desc(), plan.limits(), args));
  if (args.num_tokens == 0) return {};
  KVANT_RETURN_IF_ERROR(check_cache_memory(plan.desc(), args));
  return plan.launch().is_prefill ? launch_prefill(plan, args, stream) : launch_decode(plan, args, stream);
}

}  // namespace kvant::attn::cuda
