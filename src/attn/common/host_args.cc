#include "attn/common/host_args.h"

#include <fmt/format.h>

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status check_pointers(const AttnDesc& desc, const AttnArgs& args) {
  if (args.q_offsets == nullptr || args.kv_lens == nullptr)
    return invalid("q_offsets and kv_lens are needed when num_requests is not 0");
  if (args.num_tokens == 0) return {};
  if (args.q == nullptr || args.out == nullptr || args.page_table == nullptr)
    return invalid("q, out and page_table are needed when num_tokens is not 0");
  if (desc.sinks && args.sinks == nullptr) return invalid("the layer has attention sinks but args.sinks is null");
  if (desc.draft_mask == DraftMask::kPacked && args.mask == nullptr)
    return invalid("the packed draft mask needs args.mask");
  const KeyConditioner& conditioner = args.cache.conditioner;
  if (conditioner.kind != desc.conditioning)
    return invalid(fmt::format("the cache's keys are conditioned '{}' but the plan expects '{}'",
                               to_string(conditioner.kind), to_string(desc.conditioning)));
  if (conditioner.kind != KeyConditioning::kNone && conditioner.mu == nullptr)
    return invalid("conditioned keys need the conditioner's mu");
  if (conditioner.kind == KeyConditioning::kFull && conditioner.z == nullptr)
    return invalid("fully conditioned keys need the conditioner's z");
  const int32_t num_scales = args.cache.scales.count;
  if (num_scales != 1 && num_scales != desc.layout.num_kv_heads)
    return invalid(fmt::format("{} global KV scales given; 1 or num_kv_heads = {} are needed", num_scales,
                               desc.layout.num_kv_heads));
  return {};
}

Status check_counts(const AttnLimits& limits, const AttnArgs& args) {
  if (args.num_requests < 0 || args.num_requests > limits.max_requests)
    return invalid(
        fmt::format("num_requests {} is outside the plan's limit 0 to {}", args.num_requests, limits.max_requests));
  if (args.num_tokens < 0 || args.num_tokens > limits.max_tokens)
    return invalid(
        fmt::format("num_tokens {} is outside the plan's limit 0 to {}", args.num_tokens, limits.max_tokens));
  return {};
}

}  // namespace

Status check_host_args(const AttnDesc& desc, const AttnLimits& limits, const AttnArgs& args) {
  KVANT_RETURN_IF_ERROR(check_counts(limits, args));
  if (args.num_requests == 0)
    return args.num_tokens == 0 ? Status() : invalid(fmt::format("{} tokens but no request", args.num_tokens));
  KVANT_RETURN_IF_ERROR(check_pointers(desc, args));
  if (!(args.cache.layout == desc.layout))
    return invalid(fmt::format("the cache's layout ({}) is not the plan's ({})", args.cache.layout.to_string(),
                               desc.layout.to_string()));
  return {};
}

}  // namespace kvant::attn
