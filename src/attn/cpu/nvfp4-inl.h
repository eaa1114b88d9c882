// Per-target inline code: the NVFP4 quantiser, one block of 16 per vector lane, bit for bit as in attn/kv/nvfp4.h.

#if defined(KVANT_ATTN_CPU_NVFP4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_NVFP4_INL_H_
#undef KVANT_ATTN_CPU_NVFP4_INL_H_
#else
#define KVANT_ATTN_CPU_NVFP4_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#include "attn/cpu/convert-inl.h"
#include "attn/kv/nvfp4.h"
#include "kvant/attn/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::HWY_NAMESPACE {

/// Blocks that wait to be encoded, from any rows: lanes stay full whatever the head size.
struct Nvfp4Batch {
  static constexpr int32_t kCapacity = 64;
  HWY_ALIGN float values[kCapacity * kNvfp4Block];
  HWY_ALIGN float g[kCapacity];
  uint8_t* data[kCapacity];   ///< Eight bytes of codes.
  uint8_t* scale[kCapacity];  ///< One byte.
  int32_t count = 0;
};

/// The e2m1 value nearest to a quotient >= 0: adding `magic` rounds at the step of the quotient's binade, to even
/// codes.
struct RoundedE2m1 {
  F32 magic;
  F32 sum;
  HWY_INLINE F32 value() const { return hn::Sub(sum, magic); }
  HWY_INLINE U32 code() const {
    const U32 first_binade = hn::Set(U32Tag(), 0x4a800000u);  // 2^22, whose ulp is 0.5
    const U32 binade = hn::ShiftRight<22>(hn::Sub(bits_of(magic), first_binade));
    return hn::Add(hn::Sub(bits_of(sum), bits_of(magic)), binade);
  }
};

HWY_INLINE RoundedE2m1 round_e2m1(F32 quotient) {
  const F32Tag d;
  const U32Tag du;
  const F32 clamped = hn::Min(quotient, hn::Set(d, 6.0f));
  const U32 binade = hn::And(bits_of(hn::Max(clamped, hn::Set(d, 1.0f))), hn::Set(du, 0x7f800000u));
  const F32 magic = float_of(hn::Add(binade, hn::Set(du, 22u << 23)));
  return {magic, hn::Add(clamped, magic)};
}

/// `float_to_e4m3` of values >= 0.
HWY_INLINE U32 round_e4m3(F32 value) {
  const U32 magnitude = bits_of(hn::Min(value, hn::Set(F32Tag(), E4m3Traits::kMax)));
  return round_magnitude<E4m3Traits::kShift>(magnitude, E4m3Traits::kMinNormal, E4m3Traits::kMagic,
                                             E4m3Traits::kRebias);
}

/// `e4m3_to_float` of codes 0 to 0x7e, without the slow path that denormal operands take on some processors.
HWY_INLINE F32 expand_e4m3(U32 code) {
  const U32Tag du;
  const U32 normal = hn::Add(hn::ShiftLeft<20>(code), hn::Set(du, E4m3Traits::kRebias));
  const F32 count = hn::ConvertTo(F32Tag(), hn::BitCast(I32Tag(), code));
  const F32 subnormal = hn::Mul(count, hn::Set(F32Tag(), 0.001953125f));
  return float_of(select(less(code, hn::Set(du, 8u)), bits_of(subnormal), normal));
}

/// What x is divided by: a block whose scale is zero has only zero codes.
HWY_INLINE F32 divisor_of(F32 step) {
  return hn::IfThenElse(hn::Eq(step, hn::Zero(F32Tag())), float_const(0x7f800000u), step);
}

/// Encodes blocks [first, first + kLanes) of the batch. The sign of x does not change an error, so magnitudes do.
HWY_INLINE void encode_lanes(Nvfp4Batch& batch, int32_t first, ScalePolicy policy, CodeOrder order) {
  const F32Tag d;
  const U32Tag du;
  const I32Tag di;
  const auto lane_offset = hn::ShiftLeft<4>(hn::Iota(di, 0));
  const F32 g = hn::LoadU(d, batch.g + first);
  const F32 limit = hn::Mul(g, hn::Set(d, kNvfp4Range));
  const float* values = batch.values + static_cast<int64_t>(first) * kNvfp4Block;

  F32 x[kNvfp4Block];
  U32 sign[kNvfp4Block];
  F32 amax = hn::Zero(d);
  for (int32_t i = 0; i < kNvfp4Block; ++i) {
    const F32 raw = hn::GatherIndex(d, values + i, lane_offset);
    const F32 contained = hn::IfThenElseZero(hn::Eq(raw, raw), raw);
    sign[i] = hn::ShiftRight<31>(bits_of(contained));
    x[i] = hn::Min(hn::Abs(contained), limit);
    amax = hn::Max(amax, x[i]);
  }

  U32 best_scale = hn::Zero(du);
  F32 best_error = hn::Zero(d);
  const int32_t num_candidates = num_scale_candidates(policy);
  for (int32_t candidate = 0; candidate < num_candidates; ++candidate) {
    const F32 divisor = hn::Mul(hn::Set(d, scale_divisor(policy, candidate)), g);
    const U32 scale = round_e4m3(hn::Div(amax, divisor));
    if (num_candidates == 1) {
      best_scale = scale;
      break;
    }
    const F32 step = hn::Mul(expand_e4m3(scale), g);
    const F32 by = divisor_of(step);
    F32 error = hn::Zero(d);
    for (int32_t i = 0; i < kNvfp4Block; ++i) {
      const F32 residual = hn::Sub(hn::Mul(round_e2m1(hn::Div(x[i], by)).value(), step), x[i]);
      error = hn::Add(error, hn::Mul(residual, residual));
    }
    if (candidate == 0) {
      best_scale = scale;
      best_error = error;
      continue;
    }
    const auto better = hn::Lt(error, best_error);
    best_scale = select(hn::RebindMask(du, better), scale, best_scale);
    best_error = hn::IfThenElse(better, error, best_error);
  }

  const F32 by = divisor_of(hn::Mul(expand_e4m3(best_scale), g));
  U32 words[2] = {hn::Zero(du), hn::Zero(du)};
  for (int32_t i = 0; i < kNvfp4Block; ++i) {
    const U32 code = round_e2m1(hn::Div(x[i], by)).code();
    const int32_t at = i % 8;
    const bool linear = order == CodeOrder::kLinear;
    const int magnitude_shift = linear ? linear_magnitude_shift(at) : packed_magnitude_shift(at);
    const int sign_shift = linear ? linear_sign_shift(at) : packed_sign_shift(at);
    const U32 placed = hn::Or(hn::ShiftLeftSame(code, magnitude_shift), hn::ShiftLeftSame(sign[i], sign_shift));
    words[i / 8] = hn::Or(words[i / 8], placed);
  }

  uint32_t low[kLanes], high[kLanes], scales[kLanes];
  hn::StoreU(words[0], du, low);
  hn::StoreU(words[1], du, high);
  hn::StoreU(best_scale, du, scales);
  const int32_t count = batch.count - first < kLanes ? batch.count - first : kLanes;
  for (int32_t lane = 0; lane < count; ++lane) {
    std::memcpy(batch.data[first + lane], &low[lane], sizeof(uint32_t));
    std::memcpy(batch.data[first + lane] + 4, &high[lane], sizeof(uint32_t));
    *batch.scale[first + lane] = static_cast<uint8_t>(scales[lane]);
  }
}

/// Encodes and empties the batch.
HWY_INLINE void flush(Nvfp4Batch& batch, ScalePolicy policy, CodeOrder order) {
  for (int32_t block = batch.count; block % kLanes != 0; ++block) {
    std::memset(batch.values + static_cast<int64_t>(block) * kNvfp4Block, 0, kNvfp4Block * sizeof(float));
    batch.g[block] = 1.0f;
  }
  for (int32_t first = 0; first < batch.count; first += kLanes) encode_lanes(batch, first, policy, order);
  batch.count = 0;
}

}  // namespace kvant::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
