#include <algorithm>
#include <bit>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "attn/common/kernel_rows.h"
#include "kvant/attn/kernel_table.h"

namespace kvant::attn {
namespace {

#ifdef KVANT_WITH_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

struct Gap {
  std::vector<std::string> needed;
  std::vector<std::string> offered;

  void add(std::string need, std::string offer) {
    needed.push_back(std::move(need));
    offered.push_back(std::move(offer));
  }
  bool empty() const { return needed.empty(); }
};

void check_format(Gap& gap, std::string_view which, KvFormat format, const KernelRow& row) {
  if (!row.formats.contains(format))
    gap.add(fmt::format("{} format {}", which, to_string(format)), fmt::format("formats {}", to_string(row.formats)));
}

void check_head_dim(Gap& gap, std::string_view which, int32_t head_dim, const KvLimits& limits) {
  if (head_dim < limits.min_head_dim || head_dim > limits.max_head_dim || head_dim % limits.head_dim_multiple != 0) {
    gap.add(fmt::format("{} {}", which, head_dim), fmt::format("head dims {} to {} in steps of {}", limits.min_head_dim,
                                                               limits.max_head_dim, limits.head_dim_multiple));
  }
}

Gap find_gap(const KernelRow& row, const AttnDesc& desc) {
  const KvLayout& layout = desc.layout;
  const KvLimits& limits = row.limits;
  Gap gap;
  check_format(gap, "K", layout.k_format, row);
  check_format(gap, "V", layout.v_format, row);
  check_head_dim(gap, "head_dim_k", layout.head_dim_k, limits);
  check_head_dim(gap, "head_dim_v", layout.head_dim_v, limits);
  if (layout.num_kv_heads < 1 || desc.num_q_heads < 1 || desc.num_q_heads % layout.num_kv_heads != 0) {
    gap.add(fmt::format("{} query heads on {} KV heads", desc.num_q_heads, layout.num_kv_heads),
            "whole numbers of query heads per KV head");
  } else if (const int32_t group = desc.num_q_heads / layout.num_kv_heads; group > limits.max_group_size) {
    gap.add(fmt::format("{} query heads per KV head", group), fmt::format("up to {}", limits.max_group_size));
  }
  if (layout.page_size < limits.min_page_size || layout.page_size > limits.max_page_size ||
      !std::has_single_bit(static_cast<uint32_t>(layout.page_size))) {
    gap.add(fmt::format("page size {}", layout.page_size),
            fmt::format("powers of two from {} to {}", limits.min_page_size, limits.max_page_size));
  }
  FeatureSet wanted = needed_features(desc);
  wanted.bits &= features_of(row.op).bits;
  if (const FeatureSet missing = wanted.without(row.features); !missing.empty())
    gap.add(to_string(missing), fmt::format("features: {}", to_string(row.features)));
  if (const FeatureSet missing = row.required.without(wanted); !missing.empty())
    gap.add(fmt::format("a cache without {}", to_string(missing)),
            fmt::format("only with {}", to_string(row.required)));
  return gap;
}

std::string family_name(const DeviceInfo& device) {
  if (device.family == DeviceFamily::kCpu) return "the CPU";
  return fmt::format("{} (compute capability {}.{})", to_string(device.family), device.compute_capability / 10,
                     device.compute_capability % 10);
}

std::string offered_families(AttnOp op, const KernelTable& table) {
  std::vector<std::string_view> names;
  for (const KernelRow& row : table.rows) {
    const bool built = row.family == DeviceFamily::kCpu || table.has_cuda;
    const std::string_view name = to_string(row.family);
    if (row.op == op && built && std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

KernelTable kernel_table() { return {.rows = kKernelRows, .has_cuda = kHasCuda}; }

Result<const KernelRow*> select_kernel(AttnOp op, const DeviceInfo& device, const AttnDesc& desc,
                                       const KernelTable& table) {
  if (device.family != DeviceFamily::kCpu && !table.has_cuda) {
    return failure(StatusCode::kUnsupported,
                   fmt::format("this build has no CUDA kernels; needed: {} on {}; offered: {}; run on the CPU or build "
                               "with KVANT_WITH_CUDA=ON",
                               to_string(op), family_name(device), offered_families(op, table)));
  }
  const KernelRow* nearest = nullptr;
  Gap nearest_gap;
  for (const KernelRow& row : table.rows) {
    if (row.op != op || row.family != device.family) continue;
    Gap gap = find_gap(row, desc);
    if (gap.empty()) return &row;
    if (nearest == nullptr || gap.needed.size() < nearest_gap.needed.size()) {
      nearest = &row;
      nearest_gap = std::move(gap);
    }
  }
  if (nearest == nullptr) {
    return failure(StatusCode::kUnsupported,
                   fmt::format("no {} kernel is built for {}; needed: {} on {}; offered: {}", to_string(op),
                               family_name(device), to_string(op), family_name(device), offered_families(op, table)));
  }
  return failure(StatusCode::kUnsupported,
                 fmt::format("no {} kernel of {} takes this configuration; needed: {}; offered by {}: {}",
                             to_string(op), family_name(device), fmt::join(nearest_gap.needed, "; "), nearest->name,
                             fmt::join(nearest_gap.offered, "; ")));
}

}  // namespace kvant::attn
