#include "attn/cuda/prefill_route.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "attn/cuda/common/cuda_status.h"
#include "attn/cuda/generic/prefill_flash.h"
#include "attn/cuda/launch_config.h"
#include "attn/cuda/launch_params.h"

namespace kvant::attn::cuda {
namespace {

constexpr int32_t kWidestHeadEverywhere = 256;

WorkspaceCut workspace_cut(const PrefillInstance& instance, int32_t num_blocks) {
  return cut_workspace(num_blocks, instance.rows, instance.head_dim_v);
}

TileSource source_of(const KvLayout& layout) {
  if (layout.k_format != layout.v_format) return TileSource::kQuantised;
  if (layout.k_format == KvFormat::kBf16) return TileSource::kBf16;
  return layout.k_format == KvFormat::kF16 ? TileSource::kF16 : TileSource::kQuantised;
}

bool takes(const PrefillInstance& instance, const AttnDesc& desc, const DeviceInfo& device) {
  // What expands quantised tiles takes f16 ones as well.
  const TileSource source = source_of(desc.layout);
  const bool reads =
      instance.source == source || (source == TileSource::kF16 && instance.source == TileSource::kQuantised);
  return reads && instance.head_dim_k >= desc.layout.head_dim_k && instance.head_dim_v >= desc.layout.head_dim_v &&
         (instance.compute_capability == 0 || instance.compute_capability == device.compute_capability);
}

/// The device's own instances first, of those the ones that pad least, and of those the fewest rows that hold a
/// request's, else the most that fit the device.
std::optional<int32_t> find_instance(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device) {
  const int64_t rows = int64_t{limits.max_query_len} * (desc.num_q_heads / desc.layout.num_kv_heads);
  const auto rank = [&](const PrefillInstance& instance) {
    const bool fits = instance.image().shared_bytes <= device.shared_memory_per_block;
    const int64_t missing_rows = std::max<int64_t>(rows - instance.rows, 0);
    return std::make_tuple(!fits, instance.compute_capability == 0, instance.source != source_of(desc.layout),
                           instance.head_dim_k + instance.head_dim_v, missing_rows, instance.rows);
  };
  const auto instances = prefill_flash_instances();
  std::optional<int32_t> best;
  for (size_t i = 0; i < instances.size(); ++i) {
    if (!takes(instances[i], desc, device)) continue;
    if (!best || rank(instances[i]) < rank(instances[static_cast<size_t>(*best)])) best = static_cast<int32_t>(i);
  }
  return best;
}

/// Planes are copied in pieces of 16 bytes, of 8 where a unit of 16 elements takes no more.
Status check_planes(const KvLayout& layout) {
  for (const PagePlane& plane : {make_k_plane(layout), make_v_plane(layout)}) {
    const uint32_t piece = plane.data_unit < 16 ? 8 : 16;
    if (plane.data % piece != 0 || plane.data_head % piece != 0 || plane.data_token % piece != 0) {
      return {
          StatusCode::kUnsupported,
          fmt::format("needed: rows of ({}) at multiples of {} bytes; offered on CUDA: head dims that are multiples "
                      "of 32, or pages of 16 tokens and more",
                      layout.to_string(), piece)};
    }
  }
  return {};
}

}  // namespace

Result<AttentionRoute> prefill_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device) {
  KVANT_FAIL_IF_ERROR(check_planes(desc.layout));
  const std::optional<int32_t> index = find_instance(desc, limits, device);
  if (!index)
    return failure(StatusCode::kUnsupported,
                   fmt::format("needed: prefill over {}; offered by this build: its core matrix of kernels; build with "
                               "KVANT_CUDA_MATRIX=full",
                               desc.layout.to_string()));
  const PrefillInstance& instance = prefill_flash_instances()[static_cast<size_t>(*index)];
  const KernelImage image = instance.image();
  KVANT_ASSIGN_OR_FAIL(const int32_t num_blocks, count_blocks(image, image.shared_bytes, kMaxPrefillBlocks, device));
  AttentionRoute route;
  route.launch = {.kernel = *index, .num_blocks = num_blocks, .shared_bytes = image.shared_bytes, .is_prefill = true};
  route.workspace_bytes = workspace_cut(instance, num_blocks).bytes + kWorkspaceAlignment;
  const std::string dims = instance.head_dim_k == instance.head_dim_v
                               ? fmt::format("{}", instance.head_dim_k)
                               : fmt::format("{}x{}", instance.head_dim_k, instance.head_dim_v);
  route.name = fmt::format("{}_d{}_r{}", instance.compute_capability == 90 ? "wgmma" : "mma", dims, instance.rows);
  return route;
}

Status check_prefill_images(const DeviceInfo& device) {
  for (const PrefillInstance& instance : prefill_flash_instances()) {
    if (instance.compute_capability != 0 && instance.compute_capability != device.compute_capability) continue;
    const KernelImage image = instance.image();
    // Heads this wide are for devices with the memory; elsewhere make_plan says what they need.
    if (instance.head_dim_v > kWidestHeadEverywhere && image.shared_bytes > device.shared_memory_per_block) continue;
    const std::string name =
        fmt::format("prefill kernel d{}x{}_r{}", instance.head_dim_k, instance.head_dim_v, instance.rows);
    KVANT_RETURN_IF_ERROR(check_image(name, image, device));
  }
  return {};
}

Status launch_prefill(const AttnPlan& plan, const AttnArgs& args, void* stream) {
  const AttnDesc& desc = plan.desc();
  const PrefillInstance& instance = prefill_flash_instances()[static_cast<size_t>(plan.launch().kernel)];
  const KernelImage image = instance.image();
  const WorkspaceCut cut = workspace_cut(instance, plan.launch().num_blocks);
  auto params = common_params<PrefillParams>(plan, args, cut);
  set_pools(params, desc, args.cache);
  params.batch_invariant = desc.batch_invariant;
  return launch(plan, image, &params, false, stream);
}

}  // namespace kvant::attn::cuda
