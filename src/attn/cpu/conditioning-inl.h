// Per-target inline code: key conditioning, bit for bit as in attn/kv/conditioning.h.

#if defined(KVANT_ATTN_CPU_CONDITIONING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_CONDITIONING_INL_H_
#undef KVANT_ATTN_CPU_CONDITIONING_INL_H_
#else
#define KVANT_ATTN_CPU_CONDITIONING_INL_H_
#endif

#include <cstdint>

#include <hwy/highway.h>

#include "attn/cpu/convert-inl.h"
#include "attn/kv/conditioning.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::HWY_NAMESPACE {

/// One butterfly stage inside a vector: `partner` holds each lane's partner, `upper` the sign bit in the lanes that
/// subtract. a - b = a + (-b) to the bit.
HWY_INLINE F32 butterfly(F32 v, F32 partner, U32 upper) {
  return hn::Add(partner, float_of(hn::Xor(bits_of(v), upper)));
}

/// The stages of distance 1, 2 and, with eight lanes, 4.
HWY_INLINE F32 rotate_in_register(F32 v) {
  const U32Tag du;
  const U32 lane = hn::Iota(du, 0u);
  const U32 upper1 = hn::ShiftLeft<31>(lane);
  const U32 upper2 = hn::ShiftLeft<31>(hn::ShiftRight<1>(lane));
  v = butterfly(v, hn::Shuffle2301(v), upper1);
  v = butterfly(v, hn::Shuffle1032(v), upper2);
  if constexpr (kLanes == 8) {
    const U32 upper4 = hn::ShiftLeft<31>(hn::ShiftRight<2>(lane));
    v = butterfly(v, hn::SwapAdjacentBlocks(v), upper4);
  }
  return v;
}

/// `hadamard_rotate`. Rows are multiples of 16 elements, so blocks are never shorter than a vector.
HWY_INLINE void rotate_row(float* row, int32_t head_dim) {
  const F32Tag d;
  const int32_t m = hadamard_block(head_dim);
  const F32 factor = hn::Set(d, hadamard_factor(m));
  for (int32_t i = 0; i < head_dim; i += kLanes) hn::StoreU(rotate_in_register(hn::LoadU(d, row + i)), d, row + i);
  for (int32_t h = kLanes; h < m; h *= 2) {
    for (int32_t base = 0; base < head_dim; base += 2 * h) {
      for (int32_t i = base; i < base + h; i += kLanes) {
        const F32 a = hn::LoadU(d, row + i);
        const F32 b = hn::LoadU(d, row + i + h);
        hn::StoreU(hn::Add(a, b), d, row + i);
        hn::StoreU(hn::Sub(a, b), d, row + i + h);
      }
    }
  }
  for (int32_t i = 0; i < head_dim; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), factor), d, row + i);
}

/// `condition_key`.
HWY_INLINE void condition_key_row(const KeyConditioner& conditioner, int32_t kv_head, int32_t head_dim, float* row) {
  const F32Tag d;
  const int64_t first = static_cast<int64_t>(kv_head) * head_dim;
  switch (conditioner.kind) {
    case KeyConditioning::kNone: return;
    case KeyConditioning::kMean:
      for (int32_t i = 0; i < head_dim; i += kLanes)
        hn::StoreU(hn::Sub(hn::LoadU(d, row + i), hn::LoadU(d, conditioner.mu + first + i)), d, row + i);
      return;
    case KeyConditioning::kFull:
      for (int32_t i = 0; i < head_dim; i += kLanes) {
        const F32 centred = hn::Sub(hn::LoadU(d, row + i), hn::LoadU(d, conditioner.mu + first + i));
        hn::StoreU(hn::Mul(centred, hn::LoadU(d, conditioner.zi + first + i)), d, row + i);
      }
      rotate_row(row, head_dim);
      return;
  }
}

/// Q' in place, and `query_bias` of the row as it was, summed a vector at a time.
HWY_INLINE float condition_query_row(const KeyConditioner& conditioner, int32_t kv_head, int32_t head_dim, float* row) {
  if (conditioner.kind == KeyConditioning::kNone) return 0.0f;
  const F32Tag d;
  const int64_t first = static_cast<int64_t>(kv_head) * head_dim;
  F32 bias = hn::Zero(d);
  for (int32_t i = 0; i < head_dim; i += kLanes)
    bias = hn::MulAdd(hn::LoadU(d, row + i), hn::LoadU(d, conditioner.mu + first + i), bias);
  if (conditioner.kind == KeyConditioning::kFull) {
    for (int32_t i = 0; i < head_dim; i += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::LoadU(d, conditioner.z + first + i)), d, row + i);
    rotate_row(row, head_dim);
  }
  return hn::GetLane(hn::SumOfLanes(d, bias));
}

}  // namespace kvant::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
