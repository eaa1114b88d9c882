#include "attn/cuda/append.h"

#include <algorithm>
#include <bit>
#include <limits>

#include <fmt/format.h>

#include "attn/cuda/generic/age.h"
#include "attn/cuda/generic/append.h"
#include "attn/cuda/generic/convert.h"
#include "attn/cuda/generic/dequantise.h"
#include "attn/kv/conditioning.h"

namespace kvant::attn::cuda {
namespace {

Status unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }

Status check_head_dim(std::string_view which, int32_t head_dim) {
  constexpr KvLimits kLimits = kCudaKvLimits;
  if (head_dim >= kLimits.min_head_dim && head_dim <= kLimits.max_head_dim && head_dim % kLimits.head_dim_multiple == 0)
    return {};
  return unsupported(fmt::format("{} {} on CUDA; needed: {}; offered: {} to {} in steps of {}", which, head_dim,
                                 head_dim, kLimits.min_head_dim, kLimits.max_head_dim, kLimits.head_dim_multiple));
}

/// What the CUDA limits refuse of layouts that KvLayout::validate takes.
Status check_layout(const KvLayout& layout) {
  if (layout.k_format == KvFormat::kF32 || layout.v_format == KvFormat::kF32)
    return unsupported("f32 pages on CUDA; needed: f32; offered: f16, bf16, e4m3, e5m2, nvfp4");
  KVANT_RETURN_IF_ERROR(check_head_dim("head_dim_k", layout.head_dim_k));
  KVANT_RETURN_IF_ERROR(check_head_dim("head_dim_v", layout.head_dim_v));
  if (layout.page_size < kCudaKvLimits.min_page_size || layout.page_size > kCudaKvLimits.max_page_size) {
    return unsupported(fmt::format("page size on CUDA; needed: {}; offered: powers of two from {} to {}",
                                   layout.page_size, kCudaKvLimits.min_page_size, kCudaKvLimits.max_page_size));
  }
  if (layout.exact().page_bytes() > std::numeric_limits<int32_t>::max()) {
    return unsupported(fmt::format("a page on CUDA; needed: {} bytes at 16 bits; offered: less than 2 GiB",
                                   layout.exact().page_bytes()));
  }
  return {};
}

/// One launch counts its rows in 32 bits.
Status check_rows(std::string_view call, int64_t num_tokens, int32_t num_heads) {
  const int64_t limit = std::numeric_limits<int32_t>::max() / num_heads;
  if (num_tokens <= limit) return {};
  return unsupported(
      fmt::format("{} of {} tokens with {} heads in one call on CUDA; needed: {} rows; offered: up to "
                  "{} tokens; split the call",
                  call, num_tokens, num_heads, num_tokens * num_heads, limit));
}

uint32_t page_shift(const KvLayout& layout) {
  return static_cast<uint32_t>(std::countr_zero(static_cast<uint32_t>(layout.page_size)));
}

int64_t stride_or_dense(int64_t stride, int32_t num_heads, int32_t head_dim) {
  return stride != 0 ? stride : int64_t{num_heads} * head_dim;
}

ConditionParams make_condition(const KeyConditioner& conditioner, int32_t head_dim, int32_t elements) {
  if (conditioner.kind == KeyConditioning::kNone) return {};
  const int32_t block = hadamard_block(head_dim);
  return {.mu = conditioner.mu,
          .zi = conditioner.kind == KeyConditioning::kFull ? conditioner.zi : nullptr,
          .rotated_lanes = static_cast<uint32_t>(block / elements),
          .factor = hadamard_factor(block)};
}

/// Few rows are spread over more lanes, where a row still fits a warp: more of them where each takes long.
int32_t elements_of_lane(const KvLayout& layout, bool slow, int64_t num_rows) {
  // Measured: of twice as many, the blocks cost what the short code gives.
  const int64_t few_rows = slow ? 1024 : 256;
  constexpr int32_t kLanes = 32;
  const bool fits = std::max(layout.head_dim_k, layout.head_dim_v) <= kLanes * kQuadUnit;
  return fits && num_rows <= few_rows ? kQuadUnit : kUnit;
}

/// Heads of one kind for the kernel that prepares them, whose blocks begin at `first_block`.
PrepareRows prepare_rows(const void* values, int64_t token_stride, int32_t num_heads, int32_t head_dim,
                         const AppendParams& append, int64_t num_tokens, int64_t& first_block) {
  const int64_t stride = stride_or_dense(token_stride, num_heads, head_dim);
  const PrepareRows rows{.values = values,
                         .token_stride = stride,
                         .grid = make_unit_grid(num_tokens * num_heads, head_dim, append.elements),
                         .num_heads = static_cast<uint32_t>(num_heads),
                         .first_block = static_cast<uint32_t>(first_block),
                         .out_token_stride = stride};
  first_block += rows.grid.num_blocks();
  return rows;
}

Status append_prepared(const AppendArgs& args, const AppendParams& append, cudaStream_t stream) {
  const KvLayout& layout = args.cache.layout;
  const HeadPreparation& prepare = args.preparation;
  const int32_t kv_heads = layout.num_kv_heads, q_heads = prepare.q == nullptr ? 0 : prepare.num_q_heads;
  const auto num_pairs = static_cast<uint32_t>(prepare.num_pairs);
  int64_t num_blocks = 0;
  const auto rows = [&](const void* values, int64_t stride, int32_t heads, int32_t head_dim) {
    return prepare_rows(values, stride, heads, head_dim, append, args.num_tokens, num_blocks);
  };
  PrepareRows k = rows(args.k, args.k_token_stride, kv_heads, layout.head_dim_k);
  k.out = prepare.k_out, k.bias = prepare.k_bias, k.norm = prepare.k_norm, k.num_pairs = num_pairs;
  PrepareRows v = rows(args.v, args.v_token_stride, kv_heads, layout.head_dim_v);
  v.out = prepare.v_out, v.bias = prepare.v_bias;
  PrepareRows q = rows(prepare.q, prepare.q_token_stride, q_heads, layout.head_dim_k);
  q.out = prepare.q_out, q.bias = prepare.q_bias, q.norm = prepare.q_norm, q.num_pairs = num_pairs;
  q.out_token_stride = stride_or_dense(0, q_heads, layout.head_dim_k);
  return launch_prepared_append({.append = append,
                                 .heads = {k, v, q},
                                 .cosines = prepare.cosines,
                                 .sines = prepare.sines,
                                 .epsilon = prepare.norm_epsilon,
                                 .halves = prepare.pairs == RopePairs::kHalves},
                                num_blocks, stream);
}

}  // namespace

Status append(const AppendArgs& args, void* stream) {
  const KvLayout& layout = args.cache.layout;
  const int32_t heads = layout.num_kv_heads;
  KVANT_RETURN_IF_ERROR(check_layout(layout));
  KVANT_RETURN_IF_ERROR(check_rows("append", args.num_tokens, std::max(heads, args.preparation.num_q_heads)));
  const int64_t num_rows = args.num_tokens * heads;
  const int32_t elements =
      elements_of_lane(layout, args.policy == ScalePolicy::kSearch || args.preparation.any(), num_rows);
  const AppendParams params{.rows = {{args.k, stride_or_dense(args.k_token_stride, heads, layout.head_dim_k),
                                      args.cache.scales.k, make_unit_grid(num_rows, layout.head_dim_k, elements)},
                                     {args.v, stride_or_dense(args.v_token_stride, heads, layout.head_dim_v),
                                      args.cache.scales.v, make_unit_grid(num_rows, layout.head_dim_v, elements)}},
                            .slots = args.slots,
                            .base = make_page_pool(layout, args.cache.base),
                            .exact = make_page_pool(layout.exact(), args.cache.exact),
                            .condition = make_condition(args.cache.conditioner, layout.head_dim_k, elements),
                            .num_kv_heads = static_cast<uint32_t>(heads),
                            .page_shift = page_shift(layout),
                            .scale_count = args.cache.scales.count,
                            .elements = elements,
                            .dtype = args.dtype,
                            .policy = args.policy};
  if (args.preparation.any()) return append_prepared(args, params, static_cast<cudaStream_t>(stream));
  return launch_append(params, static_cast<cudaStream_t>(stream));
}

Status age_pages(const AgeArgs& args, void* stream) {
  const KvLayout& layout = args.cache.layout;
  KVANT_RETURN_IF_ERROR(check_layout(layout));
  KVANT_RETURN_IF_ERROR(check_rows("age_pages", args.num_ages * layout.page_size, layout.num_kv_heads));
  const int64_t num_rows = args.num_ages * layout.rows_per_page();
  // Most entries pad the list: a request's page ages once in so many steps as it has tokens.
  const int32_t elements = elements_of_lane(layout, args.policy == ScalePolicy::kSearch, num_rows / 2);
  const AgeParams params{.ages = args.ages,
                         .base = make_page_pool(layout, args.cache.base),
                         .exact = make_page_pool(layout.exact(), args.cache.exact),
                         .grid = {make_unit_grid(num_rows, layout.head_dim_k, elements),
                                  make_unit_grid(num_rows, layout.head_dim_v, elements)},
                         .scales = {args.cache.scales.k, args.cache.scales.v},
                         .num_kv_heads = static_cast<uint32_t>(layout.num_kv_heads),
                         .page_shift = page_shift(layout),
                         .scale_count = args.cache.scales.count,
                         .elements = elements,
                         .policy = args.policy};
  return launch_age(params, static_cast<cudaStream_t>(stream));
}

Status convert_pages(const KvLayout& from_layout, KvPool from, const KvLayout& to_layout, KvPool to, void* stream) {
  KVANT_RETURN_IF_ERROR(check_layout(from_layout));
  KVANT_RETURN_IF_ERROR(check_layout(to_layout));
  KVANT_RETURN_IF_ERROR(check_rows("convert_pages", from.num_pages * from_layout.page_size, from_layout.num_kv_heads));
  const int64_t num_rows = from.num_pages * from_layout.rows_per_page();
  const ConvertParams params{
      .from = make_page_pool(from_layout, from),
      .to = make_page_pool(to_layout, to),
      .grid = {make_unit_grid(num_rows, from_layout.head_dim_k), make_unit_grid(num_rows, from_layout.head_dim_v)},
      .num_kv_heads = static_cast<uint32_t>(from_layout.num_kv_heads),
      .page_shift = page_shift(from_layout)};
  return launch_convert(params, static_cast<cudaStream_t>(stream));
}

Status dequantise(const KvCacheView& cache, std::span<const int64_t> slots, float* k_out, float* v_out, void* stream) {
  const KvLayout& layout = cache.layout;
  const auto num_slots = static_cast<int64_t>(slots.size());
  KVANT_RETURN_IF_ERROR(check_layout(layout));
  KVANT_RETURN_IF_ERROR(check_rows("dequantise", num_slots, layout.num_kv_heads));
  const int64_t num_rows = num_slots * layout.num_kv_heads;
  const DequantiseParams params{
      .slots = slots.data(),
      .out = {k_out, v_out},
      .base = make_page_pool(layout, cache.base),
      .exact = make_page_pool(layout.exact(), cache.exact),
      .grid = {make_unit_grid(num_rows, layout.head_dim_k), make_unit_grid(num_rows, layout.head_dim_v)},
      .scales = {cache.scales.k, cache.scales.v},
      .num_kv_heads = static_cast<uint32_t>(layout.num_kv_heads),
      .page_shift = page_shift(layout),
      .scale_count = cache.scales.count};
  return launch_dequantise(params, static_cast<cudaStream_t>(stream));
}

}  // namespace kvant::attn::cuda
