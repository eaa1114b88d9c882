// Per-target inline code: vectors of fp32 from and to f16, bf16, e4m3 and e5m2, bit for bit as in attn/kv/.
// Include after core/simd_targets.h and hwy/foreach_target.h.

#if defined(KVANT_ATTN_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_CONVERT_INL_H_
#undef KVANT_ATTN_CPU_CONVERT_INL_H_
#else
#define KVANT_ATTN_CPU_CONVERT_INL_H_
#endif

#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Eight lanes at most: every row length is a multiple of 16, and in-register rotations stay simple.
using F32Tag = hn::CappedTag<float, 8>;
using U32Tag = hn::RebindToUnsigned<F32Tag>;
using I32Tag = hn::RebindToSigned<F32Tag>;
using U16Tag = hn::Rebind<uint16_t, F32Tag>;
using U8Tag = hn::Rebind<uint8_t, F32Tag>;
using F32 = hn::Vec<F32Tag>;
using U32 = hn::Vec<U32Tag>;
inline constexpr int32_t kLanes = static_cast<int32_t>(hn::MaxLanes(F32Tag()));

HWY_INLINE U32 bits_of(F32 v) { return hn::BitCast(U32Tag(), v); }
HWY_INLINE F32 float_of(U32 v) { return hn::BitCast(F32Tag(), v); }
HWY_INLINE F32 float_const(uint32_t bits) { return float_of(hn::Set(U32Tag(), bits)); }
HWY_INLINE U32 select(hn::Mask<U32Tag> mask, U32 yes, U32 no) { return hn::IfThenElse(mask, yes, no); }
/// Unsigned compare of values below 2^31.
HWY_INLINE hn::Mask<U32Tag> less(U32 a, U32 b) {
  return hn::RebindMask(U32Tag(), hn::Lt(hn::BitCast(I32Tag(), a), hn::BitCast(I32Tag(), b)));
}

/// A float magnitude rounded to a mini-float with `kShift` fewer mantissa bits. Below `min_normal`, adding `magic`
/// leaves the count of the smallest subnormal in the low bits. The magnitude must not exceed the format's maximum.
template <int kShift>
HWY_INLINE U32 round_magnitude(U32 magnitude, uint32_t min_normal, uint32_t magic, uint32_t rebias) {
  const U32Tag du;
  const U32 odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(du, 1u));
  const U32 rounded = hn::Add(hn::Add(magnitude, hn::Set(du, (1u << (kShift - 1)) - 1u)), odd);
  const U32 normal = hn::ShiftRight<kShift>(hn::Sub(rounded, hn::Set(du, rebias)));
  const U32 subnormal = hn::Sub(bits_of(hn::Add(float_of(magnitude), float_const(magic))), hn::Set(du, magic));
  return select(less(magnitude, hn::Set(du, min_normal)), subnormal, normal);
}

HWY_INLINE F32 load_bf16(const uint16_t* from) {
  return float_of(hn::ShiftLeft<16>(hn::PromoteTo(U32Tag(), hn::LoadU(U16Tag(), from))));
}

HWY_INLINE F32 load_f16(const uint16_t* from) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, F32Tag> df16;
  return hn::PromoteTo(F32Tag(), hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  const U32Tag du;
  const U32 half = hn::PromoteTo(du, hn::LoadU(U16Tag(), from));
  const U32 sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  const U32 magnitude = hn::And(half, hn::Set(du, 0x7fffu));
  const U32 shifted = hn::ShiftLeft<13>(magnitude);
  const U32 finite = bits_of(hn::Mul(float_of(shifted), float_const(0x77800000u)));
  const U32 special = hn::Or(shifted, hn::Set(du, 0x7f800000u));
  return float_of(hn::Or(sign, select(less(magnitude, hn::Set(du, 0x7c00u)), finite, special)));
#endif
}

/// `encode_f16` of attn/kv/f16.h.
HWY_INLINE void store_f16(F32 v, uint16_t* to) {
  const F32Tag d;
  const F32 limit = hn::Set(d, 65504.0f);
  const auto nan = hn::IsNaN(v);
  const F32 clamped = hn::Max(hn::Min(v, limit), hn::Neg(limit));
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, F32Tag> df16;
  const F32 contained = hn::IfThenElse(nan, float_const(0x7fc00000u), clamped);
  hn::StoreU(hn::DemoteTo(df16, contained), df16, reinterpret_cast<hwy::float16_t*>(to));
#else
  const U32Tag du;
  const U32 bits = bits_of(clamped);
  const U32 sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const U32 magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const U32 half = hn::Or(sign, round_magnitude<13>(magnitude, 0x38800000u, 0x3f000000u, 0x38000000u));
  const U32 contained = select(hn::RebindMask(du, nan), hn::Set(du, 0x7e00u), half);
  hn::StoreU(hn::DemoteTo(U16Tag(), hn::BitCast(I32Tag(), contained)), U16Tag(), to);
#endif
}

/// `float_to_bf16` of core/float_bits.h.
HWY_INLINE void store_bf16(F32 v, uint16_t* to) {
  const U32Tag du;
  const U32 bits = bits_of(v);
  const U32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const U32 rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
  const U32 quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const U32 upper = hn::ShiftRight<16>(select(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded));
  hn::StoreU(hn::DemoteTo(U16Tag(), hn::BitCast(I32Tag(), upper)), U16Tag(), to);
}

struct E4m3Traits {
  static constexpr int kShift = 20;
  static constexpr float kMax = 448.0f;
  static constexpr uint32_t kMinNormal = 0x3c800000u, kMagic = 0x46800000u, kRebias = 0x3c000000u;
};
struct E5m2Traits {
  static constexpr int kShift = 21;
  static constexpr float kMax = 57344.0f;
  static constexpr uint32_t kMinNormal = 0x38800000u, kMagic = 0x43000000u, kRebias = 0x38000000u;
};

/// `encode_e4m3` and `encode_e5m2` of attn/kv/, after the division by g.
template <class Traits>
HWY_INLINE void store_fp8(F32 scaled, uint8_t* to) {
  const F32Tag d;
  const U32Tag du;
  const F32 contained = hn::IfThenElseZero(hn::Eq(scaled, scaled), scaled);
  const U32 sign = hn::And(hn::ShiftRight<24>(bits_of(contained)), hn::Set(du, 0x80u));
  const U32 magnitude = bits_of(hn::Min(hn::Abs(contained), hn::Set(d, Traits::kMax)));
  const U32 code = round_magnitude<Traits::kShift>(magnitude, Traits::kMinNormal, Traits::kMagic, Traits::kRebias);
  hn::StoreU(hn::DemoteTo(U8Tag(), hn::BitCast(I32Tag(), hn::Or(sign, code))), U8Tag(), to);
}

}  // namespace kvant::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
