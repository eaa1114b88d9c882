#include "engine/cache/attention_plans.h"

#include <algorithm>
#include <utility>

#include "kvant/core/thread_pool.h"

namespace kvant::engine {
namespace {

/// Query rows of a KV head that the narrow kernels take at once.
constexpr int32_t kNarrowRows = 8;

attn::AttnLimits narrowed(attn::AttnLimits limits, int32_t query_len) {
  limits.max_query_len = query_len;
  limits.max_tokens = std::min(limits.max_tokens, limits.max_requests * query_len);
  return limits;
}

}  // namespace

Result<AttentionPlans> AttentionPlans::create(std::span<const LayerGroup> groups, const attn::AttnLimits& limits,
                                              const DeviceInfo& device, Stream stream) {
  const int num_threads = stream.pool != nullptr ? stream.pool->num_threads() : 1;
  const auto narrow_query_len = [&](const LayerGroup& group) {
    const int32_t rows = group.desc.num_q_heads / std::max(1, group.desc.layout.num_kv_heads);
    return stream.cuda != nullptr ? std::min(limits.max_query_len, kNarrowRows / rows) : 0;
  };
  size_t bytes = 0;
  for (const LayerGroup& group : groups) {
    KVANT_ASSIGN_OR_FAIL(const size_t wide, attn::workspace_size(group.desc, limits, device, num_threads));
    bytes = std::max(bytes, wide);
    if (const int32_t query_len = narrow_query_len(group); query_len > 0) {
      KVANT_ASSIGN_OR_FAIL(const size_t narrow,
                           attn::workspace_size(group.desc, narrowed(limits, query_len), device, num_threads));
      bytes = std::max(bytes, narrow);
    }
  }
  AttentionPlans out;
  KVANT_ASSIGN_OR_FAIL(out.workspace_, DeviceBuffer::create(memory_of(stream), static_cast<int64_t>(bytes),
                                                            "the workspace of attention"));
  const attn::Workspace workspace{.data = out.workspace_.data(), .bytes = bytes};
  for (const LayerGroup& group : groups) {
    GroupPlans plans;
    KVANT_ASSIGN_OR_FAIL(plans.wide, attn::make_plan(group.desc, limits, device, num_threads, workspace));
    plans.narrow_query_len = narrow_query_len(group);
    if (plans.narrow_query_len > 0) {
      KVANT_ASSIGN_OR_FAIL(plans.narrow, attn::make_plan(group.desc, narrowed(limits, plans.narrow_query_len), device,
                                                         num_threads, workspace));
    }
    out.plans_.push_back(std::move(plans));
  }
  if (!out.plans_.empty()) KVANT_FAIL_IF_ERROR(attn::prepare(out.plans_.front().wide, stream));
  return out;
}

bool AttentionPlans::is_narrow(size_t group, int32_t max_query_len) const {
  return max_query_len <= plans_[group].narrow_query_len;
}

const attn::AttnPlan& AttentionPlans::plan(size_t group, int32_t max_query_len) const {
  return is_narrow(group, max_query_len) ? plans_[group].narrow : plans_[group].wide;
}

std::string AttentionPlans::routes() const {
  std::string out;
  const auto add = [&](const std::string& route) {
    if (out.find(route) == std::string::npos) out += (out.empty() ? "" : ", ") + route;
  };
  for (const GroupPlans& plans : plans_) {
    if (plans.narrow_query_len > 0) add(plans.narrow.route());
    add(plans.wide.route());
  }
  return out;
}

}  // namespace kvant::engine
