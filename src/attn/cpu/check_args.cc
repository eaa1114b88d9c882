#include "attn/cpu/check_args.h"

#include "attn/cpu/key_range.h"

#include <fmt/format.h>

namespace kvant::attn::cpu {
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

Status check_page(const AttnDesc& desc, const KvCacheView& cache, int32_t request, int64_t index, int32_t entry) {
  if (entry < 0)
    return invalid(fmt::format("request {}: page-table entry {} is {} but its keys are needed", request, index, entry));
  const bool exact = is_exact_page(entry);
  if (exact && !desc.exact_pages)
    return invalid(fmt::format("request {}: page-table entry {} names the exact pool, which the plan does not have",
                               request, index));
  const KvPool& pool = exact ? cache.exact : cache.base;
  if (pool.data == nullptr || page_id(entry) >= pool.num_pages)
    return invalid(fmt::format("request {}: page {} of table entry {} is outside the {} pool of {} pages", request,
                               page_id(entry), index, exact ? "exact" : "base", pool.num_pages));
  return {};
}

Status check_request(const AttnLimits& limits, const RequestView& view) {
  const int32_t length = view.kv_len();
  if (view.num_tokens() > limits.max_query_len)
    return invalid(fmt::format("request {}: query length {} is above the plan's limit {}", view.request,
                               view.num_tokens(), limits.max_query_len));
  // Length 0 marks a padded row that sees nothing, whatever its width.
  if (length < 0 || (length > 0 && length < view.num_tokens()))
    return invalid(fmt::format("request {}: kv_len {} must be at least its query length {}", view.request, length,
                               view.num_tokens()));
  if (view.desc.draft_mask == DraftMask::kPacked &&
      view.num_tokens() > 32 * static_cast<int64_t>(view.args.mask_row_words))
    return invalid(fmt::format("request {}: query length {} needs mask rows of {} words, not {}", view.request,
                               view.num_tokens(), (view.num_tokens() + 31) / 32, view.args.mask_row_words));
  const KeyRange keys = view.keys_of(0, view.num_tokens());
  if (keys.empty()) return {};
  const int32_t page_size = view.desc.layout.page_size;
  const int64_t last_page = (keys.last - 1) / page_size;
  if (last_page >= limits.max_pages_per_request || last_page >= view.args.page_table_stride)
    return invalid(fmt::format("request {}: kv_len {} needs {} pages; the limit is {} and the page table has {}",
                               view.request, length, last_page + 1, limits.max_pages_per_request,
                               view.args.page_table_stride));
  for (int64_t index = keys.first / page_size; index <= last_page; ++index)
    KVANT_RETURN_IF_ERROR(check_page(view.desc, view.args.cache, view.request, index, view.pages()[index]));
  return {};
}

}  // namespace

Status check_args(const AttnDesc& desc, const AttnLimits& limits, const AttnArgs& args) {
  KVANT_RETURN_IF_ERROR(check_counts(limits, args));
  if (args.num_requests == 0)
    return args.num_tokens == 0 ? Status() : invalid(fmt::format("{} tokens but no request", args.num_tokens));
  KVANT_RETURN_IF_ERROR(check_pointers(desc, args));
  if (!(args.cache.layout == desc.layout))
    return invalid(fmt::format("the cache's layout ({}) is not the plan's ({})", args.cache.layout.to_string(),
                               desc.layout.to_string()));
  if (args.q_offsets[0] != 0 || args.q_offsets[args.num_requests] != args.num_tokens)
    return invalid(fmt::format("q_offsets run from {} to {}; they must run from 0 to num_tokens = {}",
                               args.q_offsets[0], args.q_offsets[args.num_requests], args.num_tokens));
  for (int32_t r = 0; r < args.num_requests; ++r)
    if (args.q_offsets[r + 1] < args.q_offsets[r])
      return invalid(
          fmt::format("q_offsets decrease from {} to {} at request {}", args.q_offsets[r], args.q_offsets[r + 1], r));
  for (int32_t r = 0; r < args.num_requests; ++r)
    KVANT_RETURN_IF_ERROR(check_request(limits, RequestView{.desc = desc, .args = args, .request = r}));
  return {};
}

}  // namespace kvant::attn::cpu
