#pragma once

#include <cstdint>

#include "core/float_bits.h"

namespace kvant::attn::cuda {

/// 2^-e for a normal number 2^e * m, 1 <= m < 2.
__device__ __forceinline__ float power_of_two_reciprocal(float value) {
  return bits_to_float(0x7f000000u - (float_to_bits(value) & 0x7f800000u));
}

/// Quotients by one divisor, for a fraction of the cost of a division each and without branches. The divisor and the
/// quotients that matter must be far from the ends of the exponent range; 0 / by and x / 0 give 0.
///
/// `reciprocal` + `low` is 1 / by to a relative 2^-47; `reciprocal` alone is correctly rounded (a Newton step from the
/// hardware's approximation, as __frcp_rn does).
class ExactQuotient {
 public:
  __device__ __forceinline__ explicit ExactQuotient(float divisor) : by_(divisor) {
    float approximate;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(approximate) : "f"(divisor));
    const float refined = __fmaf_rn(approximate, __fmaf_rn(-divisor, approximate, 1.0f), approximate);
    reciprocal_ = divisor == 0.0f ? 0.0f : refined;
    low_ = fl_mul(__fmaf_rn(-divisor, reciprocal_, 1.0f), reciprocal_);
  }

  /// The one that lane `lane` of every `width` lanes has. All lanes of the warp take part.
  __device__ __forceinline__ ExactQuotient of_lane(int lane, int width) const {
    ExactQuotient other = *this;
    other.by_ = __shfl_sync(0xffffffffu, by_, lane, width);
    other.reciprocal_ = __shfl_sync(0xffffffffu, reciprocal_, lane, width);
    other.low_ = __shfl_sync(0xffffffffu, low_, lane, width);
    return other;
  }

  /// 1 / by, correctly rounded.
  __device__ __forceinline__ float reciprocal() const { return reciprocal_; }

  /// x / by, to a relative 1.5 * 2^-47 before its one rounding.
  __device__ __forceinline__ float near(float x) const { return __fmaf_rn(x, reciprocal_, fl_mul(x, low_)); }

  /// fl(x / by): `near` is a neighbour of the exact quotient, and a step along the exact remainder from there rounds
  /// correctly when the reciprocal does (Markstein).
  __device__ __forceinline__ float rounded(float x) const {
    const float quotient = near(x);
    return __fmaf_rn(__fmaf_rn(-quotient, by_, x), reciprocal_, quotient);
  }

  /// Whether `near(x)` and fl(x / by) lie on the same side of every number o * 2^b, o = 1, 3, 5 or 7, or both on it:
  /// enough for rounding to e2m1. With 24-bit integers X and S for x and by, they part only if x / by is closer to a
  /// midpoint M = o * 2^s +- 1 (s >= 22, in half units of the last place) than the error, that is
  /// |X 2^w - S o 2^s -+ S| <= 6 with w >= 22: S must be within 6 of a multiple of 2^22. At the multiples themselves
  /// (1.0 and 1.5 as mantissas) the reciprocal is exact or no x has enough bits.
  __device__ __forceinline__ bool near_is_enough() const {
    const uint32_t beyond = float_to_bits(by_) & 0x3fffffu;
    return beyond == 0 || ((beyond + 8u) & 0x3fffffu) >= 16u;
  }

 private:
  float by_, reciprocal_, low_;
};

}  // namespace kvant::attn::cuda
