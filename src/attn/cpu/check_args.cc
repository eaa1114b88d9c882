#include "attn/cpu/check_args.h"

#include "attn/common/host_args.h"
#include "attn/cpu/key_range.h"

#include <fmt/format.h>

namespace kvant::attn::cpu {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

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
  KVANT_RETURN_IF_ERROR(check_host_args(desc, limits, args));
  if (args.num_requests == 0) return {};
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
