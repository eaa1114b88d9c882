#include "kvant/attn/attention.h"

#include <cmath>

#include <fmt/format.h>

#include "attn/cpu/cpu_attention.h"

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status check_heads(const AttnDesc& desc) {
  const int32_t num_kv_heads = desc.layout.num_kv_heads;
  if (desc.num_q_heads < 1 || desc.num_q_heads % num_kv_heads != 0)
    return invalid(
        fmt::format("num_q_heads {} must be a positive multiple of num_kv_heads {}", desc.num_q_heads, num_kv_heads));
  if (desc.num_q_heads / num_kv_heads > kCpuKvLimits.max_group_size)
    return invalid(fmt::format("{} query heads per KV head; at most {} are supported", desc.num_q_heads / num_kv_heads,
                               kCpuKvLimits.max_group_size));
  return {};
}

Status check_desc(const AttnDesc& desc) {
  KVANT_RETURN_IF_ERROR(desc.layout.validate());
  KVANT_RETURN_IF_ERROR(check_heads(desc));
  if (!std::isfinite(desc.softmax_scale) || desc.softmax_scale <= 0.0f)
    return invalid(
        fmt::format("softmax_scale {} must be positive and finite, such as 1 / sqrt(head_dim_k)", desc.softmax_scale));
  if (!std::isfinite(desc.soft_cap) || desc.soft_cap < 0.0f)
    return invalid(fmt::format("soft_cap {} must be positive, or 0 for none", desc.soft_cap));
  if (desc.window < 0) return invalid(fmt::format("window {} must be positive, or 0 for none", desc.window));
  const ContextParallel& cp = desc.context_parallel;
  if (cp.size < 1 || cp.rank < 0 || cp.rank >= cp.size || cp.interleave < 1)
    return invalid(
        fmt::format("context parallel rank {} of {} with interleave {}: 0 <= rank < size and interleave >= 1 "
                    "are needed",
                    cp.rank, cp.size, cp.interleave));
  const bool quantised = info(desc.layout.k_format).quantised || info(desc.layout.v_format).quantised;
  if (desc.exact_pages && !quantised)
    return invalid(fmt::format("exact pages need a quantised base format, not {}", desc.layout.to_string()));
  if (desc.conditioning != KeyConditioning::kNone && !quantised)
    return invalid(fmt::format("conditioned keys ('{}') need a quantised format, not {}", to_string(desc.conditioning),
                               desc.layout.to_string()));
  return {};
}

Status check_limits(const AttnLimits& limits) {
  if (limits.max_requests >= 1 && limits.max_tokens >= 1 && limits.max_query_len >= 1 &&
      limits.max_pages_per_request >= 1)
    return {};
  return invalid(
      fmt::format("limits must be at least 1: max_requests {}, max_tokens {}, max_query_len {}, "
                  "max_pages_per_request {}",
                  limits.max_requests, limits.max_tokens, limits.max_query_len, limits.max_pages_per_request));
}

Status check_plan(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device, int num_threads) {
  KVANT_RETURN_IF_ERROR(check_desc(desc));
  KVANT_RETURN_IF_ERROR(check_limits(limits));
  if (num_threads < 1) return invalid(fmt::format("num_threads {} must be at least 1", num_threads));
  if (device.family != DeviceFamily::kCpu)
    return {StatusCode::kUnsupported,
            fmt::format("attention on {} is not in this build; cpu is", to_string(device.family))};
  return {};
}

}  // namespace

Result<size_t> workspace_size(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device,
                              int num_threads) {
  KVANT_FAIL_IF_ERROR(check_plan(desc, limits, device, num_threads));
  return cpu::attention_workspace(desc, limits, num_threads);
}

Result<AttnPlan> make_plan(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device, int num_threads,
                           Workspace workspace) {
  KVANT_ASSIGN_OR_FAIL(const size_t needed, workspace_size(desc, limits, device, num_threads));
  if (workspace.data == nullptr || workspace.bytes < needed)
    return failure(invalid(fmt::format("a workspace of {} bytes is too small; workspace_size asks for {}",
                                       workspace.data == nullptr ? 0 : workspace.bytes, needed)));
  AttnPlan plan;
  plan.desc_ = desc;
  plan.limits_ = limits;
  plan.device_ = device;
  plan.workspace_ = workspace;
  plan.route_ = fmt::format("cpu/attention/{}", cpu::isa_name());
  return plan;
}

Status run(const AttnPlan& plan, const AttnArgs& args, Stream stream) {
  if (stream.pool == nullptr) return invalid("a CPU plan needs a stream with a thread pool");
  return cpu::attention(plan.desc(), plan.limits(), plan.workspace(), args, *stream.pool);
}

Status merge(const MergeArgs& args, Stream stream) {
  if (stream.pool == nullptr)
    return {StatusCode::kUnsupported, "merge on a CUDA stream is not in this build; a stream with a thread pool is"};
  return cpu::merge_parts(args, *stream.pool);
}

}  // namespace kvant::attn
