#include "engine/cache/attention_plans.h"

#include <algorithm>
#include <utility>

#include "kvant/core/thread_pool.h"

namespace kvant::engine {
namespace {

/// Query rows of a KV head up to which CUDA has kernels of their own.
constexpr int32_t kFewRows[] = {8, 16};

/// What the plans of a group are made for, the shortest rows first.
std::vector<attn::AttnLimits> plan_limits(const LayerGroup& group, const attn::AttnLimits& limits, Stream stream) {
  std::vector<attn::AttnLimits> out;
  const int32_t rows_per_token = group.desc.num_q_heads / std::max(1, group.desc.layout.num_kv_heads);
  for (const int32_t rows : kFewRows) {
    attn::AttnLimits few = limits;
    few.max_query_len = rows / std::max(1, rows_per_token);
    const int32_t before = out.empty() ? 0 : out.back().max_query_len;
    if (stream.cuda == nullptr || few.max_query_len <= before || few.max_query_len >= limits.max_query_len) continue;
    few.max_tokens =
        static_cast<int32_t>(std::min<int64_t>(limits.max_tokens, int64_t{limits.max_requests} * few.max_query_len));
    out.push_back(few);
  }
  out.push_back(limits);
  return out;
}

}  // namespace

Result<AttentionPlans> AttentionPlans::create(std::span<const LayerGroup> groups, const attn::AttnLimits& limits,
                                              const DeviceInfo& device, Stream stream) {
  const int num_threads = stream.pool != nullptr ? stream.pool->num_threads() : 1;
  size_t bytes = 0;
  for (const LayerGroup& group : groups) {
    for (const attn::AttnLimits& part : plan_limits(group, limits, stream)) {
      KVANT_ASSIGN_OR_FAIL(const size_t needed, attn::workspace_size(group.desc, part, device, num_threads));
      bytes = std::max(bytes, needed);
    }
  }
  AttentionPlans out;
  KVANT_ASSIGN_OR_FAIL(out.workspace_, DeviceBuffer::create(memory_of(stream), static_cast<int64_t>(bytes),
                                                            "the workspace of attention"));
  const attn::Workspace workspace{.data = out.workspace_.data(), .bytes = bytes};
  for (const LayerGroup& group : groups) {
    std::vector<attn::AttnPlan> plans;
    for (const attn::AttnLimits& part : plan_limits(group, limits, stream)) {
      KVANT_ASSIGN_OR_FAIL(attn::AttnPlan plan, attn::make_plan(group.desc, part, device, num_threads, workspace));
      plans.push_back(std::move(plan));
    }
    out.plans_.push_back(std::move(plans));
  }
  if (!out.plans_.empty()) KVANT_FAIL_IF_ERROR(attn::prepare(out.plans_.front().back(), stream));
  return out;
}

int32_t AttentionPlans::plan_index(size_t group, int32_t max_query_len) const {
  const std::vector<attn::AttnPlan>& plans = plans_[group];
  size_t index = 0;
  while (index + 1 < plans.size() && plans[index].limits().max_query_len < max_query_len) ++index;
  return static_cast<int32_t>(index);
}

const attn::AttnPlan& AttentionPlans::plan(size_t group, int32_t max_query_len) const {
  return plans_[group][static_cast<size_t>(plan_index(group, max_query_len))];
}

std::string AttentionPlans::routes() const {
  std::string out;
  for (const std::vector<attn::AttnPlan>& plans : plans_)
    for (const attn::AttnPlan& plan : plans)
      if (out.find(plan.route()) == std::string::npos) out += (out.empty() ? "" : ", ") + plan.route();
  return out;
}

}  // namespace kvant::engine
