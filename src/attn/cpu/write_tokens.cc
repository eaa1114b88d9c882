#include "attn/cpu/write_tokens.h"

#include "core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attn/cpu/write_tokens.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come first.
#include <hwy/highway.h>

#include "attn/cpu/conditioning-inl.h"
#include "attn/cpu/convert-inl.h"
#include "attn/cpu/nvfp4-inl.h"

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
  const int64_t k_stride =
      args.k_token_stride != 0 ? args.k_token_stride : int64_t{base.num_kv_heads} * base.head_dim_k;
  const int64_t v_stride =
      args.v_token_stride != 0 ? args.v_token_stride : int64_t{base.num_kv_heads} * base.head_dim_v;
  const int64_t element_bytes = dtype_bytes(args.dtype);
  const auto* k = static_cast<const std::byte*>(args.k);
  const auto* v = static_cast<const std::byte*>(args.v);
  TokenWriter writer(args.cache.scales, args.cache.conditioner, args.policy, base.code_order);
  for (int64_t token = first; token < last; ++token) {
    if (args.slots[token] < 0) continue;
    const bool is_exact = (args.slots[token] & kExactSlotBit) != 0;
    const int64_t slot = args.slots[token] & ~kExactSlotBit;
    const KvLayout& layout = is_exact ? exact : base;
    uint8_t* page = page_address(is_exact ? args.cache.exact : args.cache.base, slot / base.page_size);
    const int32_t in_page = static_cast<int32_t>(slot % base.page_size);
    for (int32_t head = 0; head < base.num_kv_heads; ++head) {
      const int64_t k_element = token * k_stride + int64_t{head} * base.head_dim_k;
      const int64_t v_element = token * v_stride + int64_t{head} * base.head_dim_v;
      writer.write_k(layout, page, head, in_page, {k + k_element * element_bytes, args.dtype, base.head_dim_k});
      writer.write_v(layout, page, head, in_page, {v + v_element * element_bytes, args.dtype, base.head_dim_v});
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
