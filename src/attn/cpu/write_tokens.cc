#include "attn/cpu/write_tokens.h"

#include <cstring>

#include "core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attn/cpu/write_tokens.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come first.
#include <hwy/highway.h>

#include "attn/cpu/conditioning-inl.h"
#include "attn/cpu/convert-inl.h"
#include "attn/cpu/nvfp4-inl.h"
#include "attn/cpu/prepare_heads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::HWY_NAMESPACE {
namespace {

/// One row on its way from fp32 or 16-bit values to its bytes.
struct RowSource {
  const void* values = nullptr;
  DType dtype = DType::kF32;
  int32_t head_dim = 0;
};

/// Calls `use(index, vector)` for each vector of a row.
template <class Use>
HWY_INLINE void for_each_vector(const RowSource& row, const Use& use) {
  switch (row.dtype) {
    case DType::kF32: {
      const float* from = static_cast<const float*>(row.values);
      for (int32_t i = 0; i < row.head_dim; i += kLanes) use(i, hn::LoadU(F32Tag(), from + i));
      return;
    }
    case DType::kF16: {
      const uint16_t* from = static_cast<const uint16_t*>(row.values);
      for (int32_t i = 0; i < row.head_dim; i += kLanes) use(i, load_f16(from + i));
      return;
    }
    case DType::kBf16: {
      const uint16_t* from = static_cast<const uint16_t*>(row.values);
      for (int32_t i = 0; i < row.head_dim; i += kLanes) use(i, load_bf16(from + i));
      return;
    }
  }
}

HWY_INLINE void widen(const RowSource& row, float* to) {
  for_each_vector(row, [to](int32_t i, F32 v) HWY_ATTR { hn::StoreU(v, F32Tag(), to + i); });
}

/// The opposite: fp32 values rounded to the row's dtype.
HWY_INLINE void narrow(const float* values, DType dtype, int32_t head_dim, void* to) {
  const F32Tag d;
  switch (dtype) {
    case DType::kF32: std::memcpy(to, values, static_cast<size_t>(head_dim) * sizeof(float)); return;
    case DType::kF16:
      for (int32_t i = 0; i < head_dim; i += kLanes)
        store_f16(hn::LoadU(d, values + i), static_cast<uint16_t*>(to) + i);
      return;
    case DType::kBf16:
      for (int32_t i = 0; i < head_dim; i += kLanes)
        store_bf16(hn::LoadU(d, values + i), static_cast<uint16_t*>(to) + i);
      return;
  }
}

/// The heads of one kind, and what happens to them on the way.
struct Heads {
  const void* values = nullptr;  // [tokens, count, head_dim]
  int64_t token_stride = 0;      // elements; 0 = dense
  int32_t count = 0;
  int32_t head_dim = 0;
  HeadSteps steps{};
  void* out = nullptr;  // prepared heads, or null
  int64_t out_token_stride = 0;

  static int64_t element(int64_t stride, int64_t token, int32_t head, const Heads& heads) {
    const int64_t dense = int64_t{heads.count} * heads.head_dim;
    return token * (stride != 0 ? stride : dense) + int64_t{head} * heads.head_dim;
  }
};

/// Room for one head while it is prepared.
struct HeadRoom {
  HWY_ALIGN float values[kCpuKvLimits.max_head_dim];
  HWY_ALIGN float rounded[kCpuKvLimits.max_head_dim];
};

/// The row of one head: prepared, in `room`, or as it came.
HWY_INLINE RowSource prepared_row(const AppendArgs& args, const Heads& heads, int64_t token, int32_t head,
                                  HeadRoom& room) {
  const int64_t bytes = dtype_bytes(args.dtype);
  const int64_t from = Heads::element(heads.token_stride, token, head, heads);
  const RowSource row{static_cast<const std::byte*>(heads.values) + from * bytes, args.dtype, heads.head_dim};
  if (!heads.steps.any() && heads.out == nullptr) return row;
  widen(row, room.values);
  prepare_head(args.preparation, heads.steps, token, head, heads.head_dim, room.values);
  narrow(room.values, args.dtype, heads.head_dim, room.rounded);
  if (heads.out != nullptr) {
    const int64_t to = Heads::element(heads.out_token_stride, token, head, heads);
    std::memcpy(static_cast<std::byte*>(heads.out) + to * bytes, room.rounded,
                static_cast<size_t>(heads.head_dim * bytes));
  }
  return {room.rounded, args.dtype, heads.head_dim};
}

/// Row formats without block scales.
HWY_INLINE void encode_plain_row(KvFormat format, const RowSource& row, float g, uint8_t* data) {
  const F32 divisor = hn::Set(F32Tag(), g);
  switch (format) {
    case KvFormat::kF32:
      for_each_vector(row,
                      [&](int32_t i, F32 v) HWY_ATTR { hn::StoreU(v, F32Tag(), reinterpret_cast<float*>(data) + i); });
      return;
    case KvFormat::kF16:
      for_each_vector(row, [&](int32_t i, F32 v) HWY_ATTR { store_f16(v, reinterpret_cast<uint16_t*>(data) + i); });
      return;
    case KvFormat::kBf16:
      for_each_vector(row, [&](int32_t i, F32 v) HWY_ATTR { store_bf16(v, reinterpret_cast<uint16_t*>(data) + i); });
      return;
    case KvFormat::kE4m3:
      for_each_vector(row, [&](int32_t i, F32 v) HWY_ATTR { store_fp8<E4m3Traits>(hn::Div(v, divisor), data + i); });
      return;
    case KvFormat::kE5m2:
      for_each_vector(row, [&](int32_t i, F32 v) HWY_ATTR { store_fp8<E5m2Traits>(hn::Div(v, divisor), data + i); });
      return;
    case KvFormat::kNvfp4: return;  // Goes through a batch.
  }
}

class TokenWriter {
 public:
  TokenWriter(const KvScales& scales, const KeyConditioner& conditioner, ScalePolicy policy, CodeOrder code_order)
      : scales_(scales), conditioner_(conditioner), policy_(policy), code_order_(code_order) {}
  ~TokenWriter() { flush(batch_, policy_, code_order_); }
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void write_k(const KvLayout& layout, uint8_t* page, int32_t head, int32_t token, const RowSource& row) {
    uint8_t* data = page + layout.k_row(head, token);
    const float g = scales_.k_scale(head);
    if (layout.k_format == KvFormat::kNvfp4) {
      float* values =
          add_to_batch(row, g, data, [&](int32_t block) HWY_ATTR { return page + layout.k_scale(head, token, block); });
      condition_key_row(conditioner_, head, row.head_dim, values);
      return;
    }
    if (conditioner_.kind == KeyConditioning::kNone) return encode_plain_row(layout.k_format, row, g, data);
    HWY_ALIGN float conditioned[kCpuKvLimits.max_head_dim];
    widen(row, conditioned);
    condition_key_row(conditioner_, head, row.head_dim, conditioned);
    encode_plain_row(layout.k_format, {conditioned, DType::kF32, row.head_dim}, g, data);
  }

  void write_v(const KvLayout& layout, uint8_t* page, int32_t head, int32_t token, const RowSource& row) {
    uint8_t* data = page + layout.v_row(head, token);
    const float g = scales_.v_scale(head);
    if (layout.v_format == KvFormat::kNvfp4) {
      add_to_batch(row, g, data, [&](int32_t block) HWY_ATTR { return page + layout.v_scale(head, token, block); });
      return;
    }
    encode_plain_row(layout.v_format, row, g, data);
  }

 private:
  /// Returns where the row's fp32 values wait, for conditioning in place.
  template <class ScaleOf>
  float* add_to_batch(const RowSource& row, float g, uint8_t* data, const ScaleOf& scale_of) {
    const int32_t num_blocks = row.head_dim / kNvfp4Block;
    if (batch_.count + num_blocks > Nvfp4Batch::kCapacity) flush(batch_, policy_, code_order_);
    float* values = batch_.values + static_cast<int64_t>(batch_.count) * kNvfp4Block;
    widen(row, values);
    for (int32_t block = 0; block < num_blocks; ++block, ++batch_.count) {
      batch_.g[batch_.count] = g;
      batch_.data[batch_.count] = data + static_cast<int64_t>(block) * (kNvfp4Block / 2);
      batch_.scale[batch_.count] = scale_of(block);
    }
    return values;
  }

  const KvScales& scales_;
  const KeyConditioner& conditioner_;
  const ScalePolicy policy_;
  const CodeOrder code_order_;
  Nvfp4Batch batch_;
};

uint8_t* page_address(const KvPool& pool, int64_t page) {
  return reinterpret_cast<uint8_t*>(pool.data) + page * pool.page_stride;
}

void append_range(const AppendArgs& args, int64_t first, int64_t last) {
  const KvLayout& base = args.cache.layout;
  const KvLayout exact = base.exact();
  const HeadPreparation& prepare = args.preparation;
  const bool turns = prepare.num_pairs > 0;
  const Heads queries{.values = prepare.q,
                      .token_stride = prepare.q_token_stride,
                      .count = prepare.q == nullptr ? 0 : prepare.num_q_heads,
                      .head_dim = base.head_dim_k,
                      .steps = {prepare.q_bias, prepare.q_norm, turns},
                      .out = prepare.q_out};
  const Heads keys{.values = args.k,
                   .token_stride = args.k_token_stride,
                   .count = base.num_kv_heads,
                   .head_dim = base.head_dim_k,
                   .steps = {prepare.k_bias, prepare.k_norm, turns},
                   .out = prepare.k_out,
                   .out_token_stride = args.k_token_stride};
  const Heads values{.values = args.v,
                     .token_stride = args.v_token_stride,
                     .count = base.num_kv_heads,
                     .head_dim = base.head_dim_v,
                     .steps = {prepare.v_bias, nullptr, false},
                     .out = prepare.v_out,
                     .out_token_stride = args.v_token_stride};
  HeadRoom room;
  TokenWriter writer(args.cache.scales, args.cache.conditioner, args.policy, base.code_order);
  for (int64_t token = first; token < last; ++token) {
    for (int32_t head = 0; head < queries.count; ++head) prepared_row(args, queries, token, head, room);
    const bool is_stored = args.slots[token] >= 0;
    if (!is_stored && keys.out == nullptr && values.out == nullptr) continue;
    const bool is_exact = (args.slots[token] & kExactSlotBit) != 0;
    const int64_t slot = is_stored ? args.slots[token] & ~kExactSlotBit : 0;
    const KvLayout& layout = is_exact ? exact : base;
    const KvPool& pool = is_exact ? args.cache.exact : args.cache.base;
    uint8_t* page = is_stored ? page_address(pool, slot / base.page_size) : nullptr;
    const int32_t in_page = static_cast<int32_t>(slot % base.page_size);
    for (int32_t head = 0; head < base.num_kv_heads; ++head) {
      const RowSource key = prepared_row(args, keys, token, head, room);
      if (is_stored) writer.write_k(layout, page, head, in_page, key);
      const RowSource value = prepared_row(args, values, token, head, room);
      if (is_stored) writer.write_v(layout, page, head, in_page, value);
    }
  }
}

void age_range(const AgeArgs& args, int64_t first, int64_t last) {
  const KvLayout& base = args.cache.layout;
  const KvLayout exact = base.exact();
  const KeyConditioner already_conditioned;
  TokenWriter writer(args.cache.scales, already_conditioned, args.policy, base.code_order);
  for (int64_t index = first; index < last; ++index) {
    const PageAge& age = args.ages[index / base.page_size];
    const int32_t token = static_cast<int32_t>(index % base.page_size);
    const uint8_t* from = page_address(args.cache.exact, age.exact_page);
    uint8_t* to = page_address(args.cache.base, age.base_page);
    for (int32_t head = 0; head < base.num_kv_heads; ++head) {
      writer.write_k(base, to, head, token, {from + exact.k_row(head, token), DType::kF16, base.head_dim_k});
      writer.write_v(base, to, head, token, {from + exact.v_row(head, token), DType::kF16, base.head_dim_v});
    }
  }
}

}  // namespace
}  // namespace kvant::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvant::attn {

HWY_EXPORT(append_range);
HWY_EXPORT(age_range);

namespace cpu {

void append_tokens(const AppendArgs& args, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(append_range)(args, first, last);
}

void age_tokens(const AgeArgs& args, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(age_range)(args, first, last);
}

}  // namespace cpu
}  // namespace kvant::attn
#endif  // HWY_ONCE
