#pragma once

#include <cstdint>

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "attn/cuda/common/e2m1_convert.cuh"
#include "attn/cuda/common/exact_quotient.cuh"
#include "attn/cuda/common/page_plane.h"
#include "attn/kv/nvfp4.h"
#include "core/float_bits.h"

// The NVFP4 quantiser, one block per thread, bit for bit as in attn/kv/nvfp4.h.
namespace kvant::attn::cuda {

namespace detail {

__constant__ const float kDivisors[2][kMaxScaleCandidates] = {
    {scale_divisor(ScalePolicy::kFourOverSix, 0), scale_divisor(ScalePolicy::kFourOverSix, 1)},
    {scale_divisor(ScalePolicy::kSearch, 0), scale_divisor(ScalePolicy::kSearch, 1),
     scale_divisor(ScalePolicy::kSearch, 2), scale_divisor(ScalePolicy::kSearch, 3),
     scale_divisor(ScalePolicy::kSearch, 4), scale_divisor(ScalePolicy::kSearch, 5),
     scale_divisor(ScalePolicy::kSearch, 6), scale_divisor(ScalePolicy::kSearch, 7),
     scale_divisor(ScalePolicy::kSearch, 8)}};

/// The e2m1 value nearest to a quotient from 0 to below 7: adding 2^22 times its binade rounds at the step of the
/// binade, to even codes.
__device__ __forceinline__ float round_below_7(float quotient) {
  const float binade = bits_to_float(float_to_bits(fmaxf(quotient, 1.0f)) & 0x7f800000u);
  return __fmaf_rn(binade, -4194304.0f, __fmaf_rn(binade, 4194304.0f, quotient));
}
/// The same for any quotient >= 0.
__device__ __forceinline__ float round_to_e2m1(float quotient) { return round_below_7(fminf(quotient, 6.0f)); }

/// The code of a quotient from 0 to below 7, plus kCodeBias. Steps of 0.5, 1 and 2 give the codes 2q, q + 2 and q / 2 +
/// 4; in each range the right one is the smallest. Adding 2^23 rounds to integers, to even ones from ties.
__device__ __forceinline__ uint32_t biased_e2m1_code(float quotient) {
  const float below_2 = __fmaf_rn(quotient, 2.0f, 8388608.0f);
  const float below_4 = fl_add(quotient, 8388610.0f);
  const float above_4 = __fmaf_rn(quotient, 0.5f, 8388612.0f);
  return float_to_bits(fminf(fminf(below_2, below_4), above_4));
}
inline constexpr uint32_t kCodeBias = 0x4b000000u;  // 2^23

/// `float_to_e4m3` of a finite value >= 0, and back.
__device__ __forceinline__ uint8_t round_scale(float value) {
#if __CUDA_ARCH__ >= 890
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
#else
  return float_to_e4m3(value);
#endif
}
__device__ __forceinline__ float expand_scale(uint8_t scale) {
#if __CUDA_ARCH__ >= 890
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(scale, __NV_E4M3)));
#else
  return e4m3_to_float(scale);
#endif
}

/// The magnitudes of a block, or of a lane's part of it. `unscaled` is the same divided by the power of two in g, which
/// leaves quotients as they are and keeps what they are made of away from subnormals.
template <int kElements>
struct Nvfp4Magnitudes {
  float x[kElements];
  float unscaled[kElements];
  float unscale, g, amax;

  /// The scale byte that maps amax to `divisor`.
  __device__ __forceinline__ uint8_t scale_for(float divisor) const {
    const ExactQuotient quotient(fl_mul(fl_mul(divisor, g), unscale));
    return round_scale(quotient.rounded(fl_mul(amax, unscale)));
  }
  __device__ __forceinline__ float step(uint8_t scale) const { return fl_mul(expand_scale(scale), g); }
  /// Whether some quotient may not be below 7.
  __device__ __forceinline__ bool exceeds(const ExactQuotient& quotient) const {
    return quotient.near(fl_mul(amax, unscale)) >= 6.9f;
  }
  /// What codes at a scale are made with, once what is beyond the largest is clamped.
  __device__ __forceinline__ ExactQuotient quotient_for_codes(uint8_t scale) {
    const float divisor = fl_mul(step(scale), unscale);
    const ExactQuotient quotient(divisor);
    if (quotient.near(fl_mul(amax, unscale)) >= 6.5f) {
#pragma unroll
      for (float& value : unscaled) value = fminf(value, fl_mul(6.5f, divisor));
    }
    return quotient;
  }

  /// `error` and the squared errors of the elements at a scale. An error does not depend on signs.
  template <bool kNear>
  __device__ __forceinline__ float add_errors(float error, float step, const ExactQuotient& quotient) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float value = round_to_e2m1(kNear ? quotient.near(unscaled[i]) : quotient.rounded(unscaled[i]));
      const float residual = fl_sub(fl_mul(value, step), x[i]);
      error = fl_add(error, fl_mul(residual, residual));
    }
    return error;
  }
};

/// Whether every value has at most nine significant bits, as bf16 has, and lies far from the ends of the exponent
/// range, and g is a power of two. Then what one product by a reciprocal rounds to is a nearest code, residuals and
/// their squares are exact, and the two codes beside a tie have the same error: neither needs the quotient itself.
template <int kElements>
__device__ __forceinline__ bool are_short(const Nvfp4Magnitudes<kElements>& block) {
  uint32_t low_bits = (float_to_bits(block.g) & 0x007fffffu) == 0 ? 0 : 1;
  float least = 1.0f;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    low_bits |= float_to_bits(block.x[i]);
    least = fminf(least, block.x[i] == 0.0f ? 1.0f : block.x[i]);
  }
  return (low_bits & 0x7fffu) == 0 && least >= 0x1p-60f && block.amax <= 0x1p60f && block.g >= 0x1p-60f &&
         block.g <= 0x1p60f;
}

/// The best of kCount scales at a time, of short values, so that what each waits for is hidden behind the others.
template <int kCount>
__device__ __forceinline__ uint8_t best_scale_of_short(const Nvfp4Magnitudes<kUnit>& block, const float* divisors,
                                                       int num_candidates) {
  uint8_t best = 0;
  float best_error = INFINITY;
#pragma unroll 1
  for (int first = 0; first < num_candidates; first += kCount) {
    uint8_t scale[kCount];
    float step[kCount], reciprocal[kCount], error[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      scale[j] = block.scale_for(divisors[first + j]);
      step[j] = block.step(scale[j]);
      reciprocal[j] = ExactQuotient(fl_mul(step[j], block.unscale)).reciprocal();
      error[j] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float residual = __fmaf_rn(round_to_e2m1(fl_mul(block.unscaled[i], reciprocal[j])), step[j], -block.x[i]);
        error[j] = __fmaf_rn(residual, residual, error[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (error[j] < best_error) best = scale[j], best_error = error[j];
  }
  return best;
}

__device__ __forceinline__ uint8_t best_scale(const Nvfp4Magnitudes<kUnit>& block, ScalePolicy policy) {
  if (policy == ScalePolicy::kAmax) return block.scale_for(scale_divisor(ScalePolicy::kAmax, 0));
  const bool searches = policy == ScalePolicy::kSearch;
  const float* divisors = kDivisors[searches ? 1 : 0];
  const int num_candidates = num_scale_candidates(policy);
  if (are_short(block)) {
    static_assert(num_scale_candidates(ScalePolicy::kSearch) % 3 == 0 &&
                  num_scale_candidates(ScalePolicy::kFourOverSix) % 2 == 0);
    return searches ? best_scale_of_short<3>(block, divisors, num_candidates)
                    : best_scale_of_short<2>(block, divisors, num_candidates);
  }
  uint8_t best = 0;
  float best_error = 0.0f;
  uint8_t scale = block.scale_for(divisors[0]);
#pragma unroll 1
  for (int candidate = 0; candidate < num_candidates; ++candidate) {
    // The next scale is on its way while this one is tried.
    const uint8_t next = block.scale_for(divisors[min(candidate + 1, num_candidates - 1)]);
    const float step = block.step(scale);
    const ExactQuotient quotient(fl_mul(step, block.unscale));
    const float error = quotient.near_is_enough() ? block.add_errors<true>(0.0f, step, quotient)
                                                  : block.add_errors<false>(0.0f, step, quotient);
    if (candidate == 0 || error < best_error) best = scale, best_error = error;
    scale = next;
  }
  return best;
}

template <bool kPacked>
__device__ __forceinline__ void place_codes(Nvfp4Magnitudes<kUnit>& block, uint32_t signs, uint8_t scale,
                                            uint32_t (&words)[2]) {
  const ExactQuotient quotient = block.quotient_for_codes(scale);
#if KVANT_HARDWARE_E2M1
  if constexpr (!kPacked) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      words[half] = 0;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const int element = 8 * half + i;
        const uint32_t codes =
            e2m1x2_codes(quotient.rounded(block.unscaled[element]), quotient.rounded(block.unscaled[element + 1]));
        const uint32_t sign_pair = signs >> element;
        words[half] |= (codes | (sign_pair & 1u) << 3 | (sign_pair & 2u) << 6) << 4 * i;
      }
    }
    return;
  }
#endif
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t magnitude_bits = 0, sign_bits = 0, bias = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int magnitude_shift = kPacked ? packed_magnitude_shift(i) : linear_magnitude_shift(i);
      const int sign_shift = kPacked ? packed_sign_shift(i) : linear_sign_shift(i);
      const int element = 8 * half + i;
      magnitude_bits += biased_e2m1_code(quotient.rounded(block.unscaled[element])) << magnitude_shift;
      bias += kCodeBias << magnitude_shift;
      const uint32_t moved = sign_shift >= element ? signs << (sign_shift - element) : signs >> (element - sign_shift);
      sign_bits |= moved & 1u << sign_shift;
    }
    words[half] = (magnitude_bits - bias) | sign_bits;
  }
}

}  // namespace detail

struct Nvfp4Unit {
  uint32_t words[2];
  uint8_t scale;
};

/// `values` hold no NaN.
__device__ __forceinline__ Nvfp4Unit encode_nvfp4_unit(const float (&values)[kUnit], float g, ScalePolicy policy,
                                                       CodeOrder order) {
  const float limit = fl_mul(kNvfp4Range, g);
  detail::Nvfp4Magnitudes<kUnit> block;
  block.g = g;
  block.unscale = power_of_two_reciprocal(g);
  block.amax = 0.0f;
  uint32_t signs = 0;  // Bit i is the sign of element i.
#pragma unroll
  for (int i = kUnit - 1; i >= 0; --i) {
    signs = __funnelshift_l(float_to_bits(values[i]), signs, 1);
    block.x[i] = fabsf(values[i]);
    block.amax = fmaxf(block.amax, block.x[i]);
  }
  if (block.amax > limit) {
    block.amax = limit;
#pragma unroll
    for (float& x : block.x) x = fminf(x, limit);
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) block.unscaled[i] = fl_mul(block.x[i], block.unscale);

  Nvfp4Unit unit;
  unit.scale = detail::best_scale(block, policy);
  if (order == CodeOrder::kPacked)
    detail::place_codes<true>(block, signs, unit.scale, unit.words);
  else
    detail::place_codes<false>(block, signs, unit.scale, unit.words);
  return unit;
}

}  // namespace kvant::attn::cuda
