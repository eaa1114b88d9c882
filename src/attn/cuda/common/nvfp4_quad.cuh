#pragma once

#include <cstdint>

#include "attn/cuda/common/nvfp4_unit.cuh"

// The NVFP4 quantiser with a block spread over four lanes, bit for bit as in attn/kv/nvfp4.h. With few rows every
// instruction is executed about once, and what takes the time is to fetch it: a quarter of the elements is a third of
// the instructions.
namespace kvant::attn::cuda {

namespace detail {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

inline constexpr int kTriedByQuads = 3;  // scales at a time, each worked out by one lane
static_assert(num_scale_candidates(ScalePolicy::kSearch) % kTriedByQuads == 0);

/// Adds up the squares of a block's errors in the order of its elements, for each scale; right in its last lane. A lane
/// goes on with the sum of the lane before it, once that is right.
template <bool kShort>
__device__ __forceinline__ void add_in_order(const float (&residuals)[kTriedByQuads][kQuadUnit],
                                             float (&errors)[kTriedByQuads]) {
#pragma unroll
  for (int turn = 0; turn < 4; ++turn) {
#pragma unroll
    for (int j = 0; j < kTriedByQuads; ++j) errors[j] = turn == 0 ? 0.0f : __shfl_up_sync(kAllLanes, errors[j], 1, 4);
#pragma unroll
    for (int i = 0; i < kQuadUnit; ++i)
#pragma unroll
      for (int j = 0; j < kTriedByQuads; ++j)
        errors[j] = kShort ? __fmaf_rn(residuals[j][i], residuals[j][i], errors[j])
                           : fl_add(errors[j], fl_mul(residuals[j][i], residuals[j][i]));
  }
}

/// kShort: of short values (are_short).
template <bool kShort>
__device__ __forceinline__ uint8_t best_scale_of_quad(const Nvfp4Magnitudes<kQuadUnit>& part, const float* divisors,
                                                      int num_candidates) {
  const int lane = static_cast<int>(threadIdx.x % 4);
  uint32_t best = 0;
  float best_error = 0.0f;
#pragma unroll 1
  for (int first = 0; first < num_candidates; first += kTriedByQuads) {
    // A scale that is tried twice is no better the second time.
    const uint32_t own_scale = part.scale_for(divisors[min(first + min(lane, kTriedByQuads - 1), num_candidates - 1)]);
    const float own_step = part.step(static_cast<uint8_t>(own_scale));
    const ExactQuotient own_quotient(fl_mul(own_step, part.unscale));
    const bool near = __all_sync(kAllLanes, own_quotient.near_is_enough()) != 0;
    const bool exceed = __any_sync(kAllLanes, part.exceeds(own_quotient)) != 0;

    uint32_t scales[kTriedByQuads];
    float steps[kTriedByQuads], values[kTriedByQuads][kQuadUnit];
#pragma unroll
    for (int j = 0; j < kTriedByQuads; ++j) {
      scales[j] = __shfl_sync(kAllLanes, own_scale, j, 4);
      steps[j] = __shfl_sync(kAllLanes, own_step, j, 4);
      if constexpr (kShort) {
        const float reciprocal = __shfl_sync(kAllLanes, own_quotient.reciprocal(), j, 4);
#pragma unroll
        for (int i = 0; i < kQuadUnit; ++i) values[j][i] = fl_mul(part.unscaled[i], reciprocal);
      } else {
        const ExactQuotient quotient = own_quotient.of_lane(j, 4);
#pragma unroll
        for (int i = 0; i < kQuadUnit; ++i)
          values[j][i] = near ? quotient.near(part.unscaled[i]) : quotient.rounded(part.unscaled[i]);
      }
    }
    if (exceed) {
#pragma unroll
      for (auto& of_scale : values)
#pragma unroll
        for (float& value : of_scale) value = fminf(value, 6.0f);
    }
#pragma unroll
    for (int j = 0; j < kTriedByQuads; ++j) {
#pragma unroll
      for (int i = 0; i < kQuadUnit; ++i) {
        const float value = round_below_7(values[j][i]);
        values[j][i] = kShort ? __fmaf_rn(value, steps[j], -part.x[i]) : fl_sub(fl_mul(value, steps[j]), part.x[i]);
      }
    }
    float errors[kTriedByQuads];
    add_in_order<kShort>(values, errors);
#pragma unroll
    for (int j = 0; j < kTriedByQuads; ++j)
      if (first + j == 0 || errors[j] < best_error) best = scales[j], best_error = errors[j];
  }
  return static_cast<uint8_t>(__shfl_sync(kAllLanes, best, 3, 4));
}

__device__ __forceinline__ uint8_t best_scale_of_quad(const Nvfp4Magnitudes<kQuadUnit>& part, ScalePolicy policy) {
  if (policy == ScalePolicy::kAmax) return part.scale_for(scale_divisor(ScalePolicy::kAmax, 0));
  const float* divisors = kDivisors[policy == ScalePolicy::kSearch ? 1 : 0];
  const int num_candidates = num_scale_candidates(policy);
  return __all_sync(kAllLanes, are_short(part)) != 0 ? best_scale_of_quad<true>(part, divisors, num_candidates)
                                                     : best_scale_of_quad<false>(part, divisors, num_candidates);
}

/// The word of eight codes that the lane and its neighbour have parts of.
__device__ __forceinline__ uint32_t place_quad_codes(Nvfp4Magnitudes<kQuadUnit>& part, const float (&values)[kQuadUnit],
                                                     uint8_t scale, CodeOrder order) {
  const ExactQuotient quotient = part.quotient_for_codes(scale);
  uint32_t codes[kQuadUnit];
#pragma unroll
  for (int i = 0; i < kQuadUnit; ++i) codes[i] = biased_e2m1_code(quotient.rounded(part.unscaled[i]));
  // Two magnitudes at bits 0 and 16, their signs at bits 15 and 31.
  const auto signs_of = [](float a, float b) {
    return __byte_perm(float_to_bits(a), float_to_bits(b), 0x7632) & 0x80008000u;
  };
  const uint32_t low = __byte_perm(codes[0], codes[1], 0x5410), high = __byte_perm(codes[2], codes[3], 0x5410);
  const uint32_t low_signs = signs_of(values[0], values[1]), high_signs = signs_of(values[2], values[3]);
  const bool is_second = threadIdx.x % 2 != 0;
  uint32_t word;
  if (order == CodeOrder::kPacked) {
    constexpr auto magnitude = [](int i) { return packed_magnitude_shift(i); };
    constexpr auto sign = [](int i) { return 15 - packed_sign_shift(i); };
    static_assert(magnitude(1) == magnitude(0) + 16 && magnitude(3) == magnitude(2) + 16 &&
                      magnitude(5) == magnitude(4) + 16 && magnitude(7) == magnitude(6) + 16,
                  "an even element and its successor sit 16 bits apart");
    word = is_second ? low << magnitude(4) | high << magnitude(6) | low_signs >> sign(4) | high_signs >> sign(6)
                     : low << magnitude(0) | high << magnitude(2) | low_signs >> sign(0) | high_signs >> sign(2);
  } else {
    const auto adjacent = [](uint32_t two) { return (two | two >> 12) & 0xffu; };
    word = adjacent(low | low_signs >> 12) | adjacent(high | high_signs >> 12) << 8;
    if (is_second) word <<= 16;
  }
  return word | __shfl_xor_sync(kAllLanes, word, 1);
}

}  // namespace detail

struct Nvfp4Quad {
  uint32_t word;  ///< The codes of this lane and its neighbour.
  uint8_t scale;
};

/// `values` hold no NaN. All lanes of the warp take part.
__device__ __forceinline__ Nvfp4Quad encode_nvfp4_quad(const float (&values)[kQuadUnit], float g, ScalePolicy policy,
                                                       CodeOrder order) {
  const float limit = fl_mul(kNvfp4Range, g);
  detail::Nvfp4Magnitudes<kQuadUnit> part;
  part.g = g;
  part.unscale = power_of_two_reciprocal(g);
  part.amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kQuadUnit; ++i) {
    part.x[i] = fminf(fabsf(values[i]), limit);
    part.unscaled[i] = fl_mul(part.x[i], part.unscale);
    part.amax = fmaxf(part.amax, part.x[i]);
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2)
    part.amax = fmaxf(part.amax, __shfl_xor_sync(detail::kAllLanes, part.amax, distance));
  Nvfp4Quad quad;
  quad.scale = detail::best_scale_of_quad(part, policy);
  quad.word = detail::place_quad_codes(part, values, quad.scale, order);
  return quad;
}

}  // namespace kvant::attn::cuda
