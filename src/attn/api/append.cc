#include "kvant/attn/append.h"

#include <fmt/format.h>

#include "attn/cpu/append.h"
#include "attn/cuda/append.h"

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status check_stream(const Stream& stream) {
  if ((stream.pool != nullptr) == (stream.cuda != nullptr))
    return invalid("a stream must name either a thread pool or a CUDA stream; use Stream::on_cpu or Stream::on_cuda");
  return {};
}

Status check_pool(std::string_view which, const KvPool& pool, const KvLayout& layout) {
  if (pool.num_pages < 0)
    return invalid(fmt::format("the {} pool has {} pages: none or more are needed", which, pool.num_pages));
  if (pool.num_pages == 0) return {};
  if (pool.data == nullptr)
    return invalid(fmt::format("the {} pool has {} pages but no data; set KvPool::data", which, pool.num_pages));
  if (pool.page_stride < layout.page_bytes()) {
    return invalid(fmt::format("the {} pool has a page stride of {} bytes; its layout ({}) needs at least {}", which,
                               pool.page_stride, layout.to_string(), layout.page_bytes()));
  }
  return {};
}

Status check_cache(const KvCacheView& cache) {
  KVANT_RETURN_IF_ERROR(cache.layout.validate());
  KVANT_RETURN_IF_ERROR(check_pool("base", cache.base, cache.layout));
  KVANT_RETURN_IF_ERROR(check_pool("exact", cache.exact, cache.layout.exact()));
  const bool has_scales = cache.scales.k != nullptr || cache.scales.v != nullptr;
  if (has_scales && cache.scales.count != 1 && cache.scales.count != cache.layout.num_kv_heads) {
    return invalid(fmt::format("{} global scales for {} KV heads: give 1 or one per head", cache.scales.count,
                               cache.layout.num_kv_heads));
  }
  const KeyConditioner& conditioner = cache.conditioner;
  const bool lacks_mean = conditioner.kind != KeyConditioning::kNone && conditioner.mu == nullptr;
  const bool lacks_balance =
      conditioner.kind == KeyConditioning::kFull && (conditioner.z == nullptr || conditioner.zi == nullptr);
  if (lacks_mean || lacks_balance) {
    return invalid(fmt::format("key conditioning \"{}\" lacks its {}; set it from a KV profile or choose \"none\"",
                               to_string(conditioner.kind), lacks_mean ? "mean (mu)" : "balance (z and zi)"));
  }
  return {};
}

Status check_stride(std::string_view which, int64_t stride, int32_t num_heads, int32_t head_dim) {
  const int64_t dense = int64_t{num_heads} * head_dim;
  if (stride == 0 || stride >= dense) return {};
  return invalid(
      fmt::format("{}_token_stride {} is less than one token of {} heads x {}: at least {} elements, or 0 for dense",
                  which, stride, num_heads, head_dim, dense));
}

/// A pointer that another one makes necessary.
Status check_given(const void* pointer, std::string_view name, std::string_view why) {
  if (pointer != nullptr) return {};
  return invalid(fmt::format("HeadPreparation::{} is null; {} needs it", name, why));
}

Status check_preparation(const HeadPreparation& args, const KvLayout& layout) {
  if (args.num_pairs < 0 || args.num_pairs > layout.head_dim_k / 2) {
    return invalid(fmt::format("RoPE of {} pairs: a head of {} channels has 0 to {}", args.num_pairs, layout.head_dim_k,
                               layout.head_dim_k / 2));
  }
  if (args.num_pairs > 0) {
    KVANT_RETURN_IF_ERROR(check_given(args.cosines, "cosines", "RoPE"));
    KVANT_RETURN_IF_ERROR(check_given(args.sines, "sines", "RoPE"));
  }
  if (!(args.norm_epsilon >= 0.0f))
    return invalid(fmt::format("norm_epsilon {}: a norm needs zero or more", args.norm_epsilon));
  if (args.q == nullptr) return {};
  if (args.num_q_heads <= 0)
    return invalid(fmt::format("{} query heads to prepare: at least 1 is needed, or q null", args.num_q_heads));
  KVANT_RETURN_IF_ERROR(check_given(args.q_out, "q_out", "a batch with q"));
  return check_stride("q", args.q_token_stride, args.num_q_heads, layout.head_dim_k);
}

Status check_append(const AppendArgs& args) {
  KVANT_RETURN_IF_ERROR(check_cache(args.cache));
  if (args.num_tokens < 0) return invalid(fmt::format("num_tokens {} is negative", args.num_tokens));
  if (args.num_tokens > 0 && (args.k == nullptr || args.v == nullptr || args.slots == nullptr))
    return invalid(fmt::format("append of {} tokens needs k, v and slots; at least one is null", args.num_tokens));
  const KvLayout& layout = args.cache.layout;
  KVANT_RETURN_IF_ERROR(check_preparation(args.preparation, layout));
  KVANT_RETURN_IF_ERROR(check_stride("k", args.k_token_stride, layout.num_kv_heads, layout.head_dim_k));
  return check_stride("v", args.v_token_stride, layout.num_kv_heads, layout.head_dim_v);
}

/// Formats and sizes; orders may differ.
bool same_content(KvLayout a, const KvLayout& b) {
  a.order = b.order;
  a.code_order = b.code_order;
  a.scale_order = b.scale_order;
  a.plane_order = b.plane_order;
  return a == b;
}

}  // namespace

Status append(const AppendArgs& args, Stream stream) {
  KVANT_RETURN_IF_ERROR(check_stream(stream));
  KVANT_RETURN_IF_ERROR(check_append(args));
  return stream.pool != nullptr ? cpu::append(args, *stream.pool) : cuda::append(args, stream.cuda);
}

Status age_pages(const AgeArgs& args, Stream stream) {
  KVANT_RETURN_IF_ERROR(check_stream(stream));
  KVANT_RETURN_IF_ERROR(check_cache(args.cache));
  if (args.num_ages < 0) return invalid(fmt::format("num_ages {} is negative", args.num_ages));
  if (args.num_ages > 0 && args.ages == nullptr)
    return invalid(fmt::format("age_pages of {} pages needs a list; ages is null", args.num_ages));
  return stream.pool != nullptr ? cpu::age_pages(args, *stream.pool) : cuda::age_pages(args, stream.cuda);
}

Status convert_pages(const KvLayout& from_layout, KvPool from, const KvLayout& to_layout, KvPool to, Stream stream) {
  KVANT_RETURN_IF_ERROR(check_stream(stream));
  KVANT_RETURN_IF_ERROR(from_layout.validate());
  KVANT_RETURN_IF_ERROR(to_layout.validate());
  if (!same_content(from_layout, to_layout)) {
    return invalid(
        fmt::format("pages of ({}) cannot be copied to ({}): only orders may differ; dequantise and append "
                    "to change formats or sizes",
                    from_layout.to_string(), to_layout.to_string()));
  }
  KVANT_RETURN_IF_ERROR(check_pool("source", from, from_layout));
  KVANT_RETURN_IF_ERROR(check_pool("target", to, to_layout));
  if (to.num_pages < from.num_pages) {
    return invalid(fmt::format("{} source pages do not fit the target pool of {} pages", from.num_pages, to.num_pages));
  }
  if (from.num_pages > 0 && from.data == to.data)
    return invalid("convert_pages needs a target pool apart from its source: pages are not converted in place");
  return stream.pool != nullptr ? cpu::convert_pages(from_layout, from, to_layout, to, *stream.pool)
                                : cuda::convert_pages(from_layout, from, to_layout, to, stream.cuda);
}

Status dequantise(const KvCacheView& cache, std::span<const int64_t> slots, float* k_out, float* v_out, Stream stream) {
  KVANT_RETURN_IF_ERROR(check_stream(stream));
  KVANT_RETURN_IF_ERROR(check_cache(cache));
  if (!slots.empty() && (k_out == nullptr || v_out == nullptr))
    return invalid(fmt::format("dequantise of {} slots needs k_out and v_out; at least one is null", slots.size()));
  return stream.pool != nullptr ? cpu::dequantise(cache, slots, k_out, v_out, *stream.pool)
                                : cuda::dequantise(cache, slots, k_out, v_out, stream.cuda);
}

}  // namespace kvant::attn
