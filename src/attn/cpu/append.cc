#include "attn/cpu/append.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "attn/cpu/write_tokens.h"
#include "attn/kv/row_codec.h"

namespace kvant::attn::cpu {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

/// Below this a scale step could underflow; above, 2 688 g could overflow.
constexpr float kMinGlobalScale = 0x1p-100f;
constexpr float kMaxGlobalScale = 0x1p100f;

Status check_scales(std::string_view which, const float* scales, int32_t count) {
  for (int32_t i = 0; scales != nullptr && i < count; ++i) {
    if (!(scales[i] >= kMinGlobalScale && scales[i] <= kMaxGlobalScale)) {
      return invalid(fmt::format("{}_scale[{}] is {}: a global scale must be from 2^-100 to 2^100; leave it out for 1",
                                 which, i, scales[i]));
    }
  }
  return {};
}

/// Formats without scales do not look at theirs.
Status check_scales(const KvCacheView& cache) {
  if (info(cache.layout.k_format).quantised)
    KVANT_RETURN_IF_ERROR(check_scales("k", cache.scales.k, cache.scales.count));
  if (info(cache.layout.v_format).quantised)
    KVANT_RETURN_IF_ERROR(check_scales("v", cache.scales.v, cache.scales.count));
  return {};
}

/// Negative slots pass: they are skipped.
Status check_slots(const KvCacheView& cache, const int64_t* slots, int64_t num_slots) {
  const int64_t page_size = cache.layout.page_size;
  for (int64_t i = 0; i < num_slots; ++i) {
    if (slots[i] < 0) continue;
    const bool is_exact = (slots[i] & kExactSlotBit) != 0;
    const int64_t slot = slots[i] & ~kExactSlotBit;
    const int64_t num_pages = is_exact ? cache.exact.num_pages : cache.base.num_pages;
    if (slot / page_size >= num_pages) {
      return invalid(
          fmt::format("slots[{}] is {} in the {} pool, which has {} pages of {} tokens: a slot must be below {}, or "
                      "negative to skip",
                      i, slot, is_exact ? "exact" : "base", num_pages, page_size, num_pages * page_size));
    }
  }
  return {};
}

/// Tokens per task: enough work to pay for waking a thread.
int64_t tokens_per_task(const KvLayout& layout, int32_t num_q_heads) {
  const bool has_blocks = layout.k_format == KvFormat::kNvfp4 || layout.v_format == KvFormat::kNvfp4;
  const int64_t elements_per_task = has_blocks ? 4096 : 32768;
  const int64_t elements_per_token =
      int64_t{layout.num_kv_heads} * (layout.head_dim_k + layout.head_dim_v) + int64_t{num_q_heads} * layout.head_dim_k;
  return std::max<int64_t>(1, elements_per_task / elements_per_token);
}

/// Calls `write(args, first, last)` on ranges of tokens. Captures one pointer, so that nothing is allocated.
template <class Args>
void for_token_ranges(const Args& args, int64_t num_tokens, int64_t grain, void (*write)(const Args&, int64_t, int64_t),
                      ThreadPool& pool) {
  struct Job {
    const Args& args;
    int64_t num_tokens, grain;
    void (*write)(const Args&, int64_t, int64_t);
  };
  const Job job{args, num_tokens, grain, write};
  pool.parallel_for((num_tokens + job.grain - 1) / job.grain, [&job](int64_t task, int) {
    job.write(job.args, task * job.grain, std::min(job.num_tokens, (task + 1) * job.grain));
  });
}

}  // namespace

Status append(const AppendArgs& args, ThreadPool& pool) {
  KVANT_RETURN_IF_ERROR(check_scales(args.cache));
  KVANT_RETURN_IF_ERROR(check_slots(args.cache, args.slots, args.num_tokens));
  const int32_t num_q_heads = args.preparation.q == nullptr ? 0 : args.preparation.num_q_heads;
  for_token_ranges(args, args.num_tokens, tokens_per_task(args.cache.layout, num_q_heads), &append_tokens, pool);
  return {};
}

Status age_pages(const AgeArgs& args, ThreadPool& pool) {
  KVANT_RETURN_IF_ERROR(check_scales(args.cache));
  for (int64_t i = 0; i < args.num_ages; ++i) {
    const PageAge& age = args.ages[i];
    if (age.exact_page < 0 || age.exact_page >= args.cache.exact.num_pages) {
      return invalid(fmt::format("ages[{}] reads page {} of the exact pool, which has {} pages", i, age.exact_page,
                                 args.cache.exact.num_pages));
    }
    if (age.base_page < 0 || age.base_page >= args.cache.base.num_pages) {
      return invalid(fmt::format("ages[{}] writes page {} of the base pool, which has {} pages", i, age.base_page,
                                 args.cache.base.num_pages));
    }
  }
  const KvLayout& layout = args.cache.layout;
  for_token_ranges(args, args.num_ages * layout.page_size, tokens_per_task(layout, 0), &age_tokens, pool);
  return {};
}

Status dequantise(const KvCacheView& cache, std::span<const int64_t> slots, float* k_out, float* v_out,
                  ThreadPool& pool) {
  KVANT_RETURN_IF_ERROR(check_scales(cache));
  KVANT_RETURN_IF_ERROR(check_slots(cache, slots.data(), static_cast<int64_t>(slots.size())));
  const KvLayout exact = cache.layout.exact();
  const auto expand = [&](int64_t index, int) {
    const int32_t num_heads = cache.layout.num_kv_heads;
    const int32_t k_dim = cache.layout.head_dim_k;
    const int32_t v_dim = cache.layout.head_dim_v;
    float* k = k_out + index * num_heads * k_dim;
    float* v = v_out + index * num_heads * v_dim;
    if (slots[index] < 0) {
      std::fill_n(k, int64_t{num_heads} * k_dim, 0.0f);
      std::fill_n(v, int64_t{num_heads} * v_dim, 0.0f);
      return;
    }
    const bool is_exact = (slots[index] & kExactSlotBit) != 0;
    const int64_t slot = slots[index] & ~kExactSlotBit;
    const KvLayout& layout = is_exact ? exact : cache.layout;
    const KvPool& from = is_exact ? cache.exact : cache.base;
    const auto* page = reinterpret_cast<const uint8_t*>(from.data) + slot / layout.page_size * from.page_stride;
    const int32_t token = static_cast<int32_t>(slot % layout.page_size);
    for (int32_t head = 0; head < num_heads; ++head) {
      decode_k_row(layout, page, head, token, cache.scales.k_scale(head), k + int64_t{head} * k_dim);
      decode_v_row(layout, page, head, token, cache.scales.v_scale(head), v + int64_t{head} * v_dim);
    }
  };
  pool.parallel_for(static_cast<int64_t>(slots.size()), std::cref(expand));  // By reference: nothing is allocated.
  return {};
}

}  // namespace kvant::attn::cpu
