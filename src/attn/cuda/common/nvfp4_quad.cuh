#pragma once

#include <cstdint>

#include "attn/cuda/common/nvfp4_unit.cuh"

// The NVFP4 quantiser with a block spread over four lanes, bit for bit as in attn/kv/nvfp4.h. With few rows every
// instruction is executed about once, and what takes the time is to fetch it: a quarter of the elements is a third of
// the instructions.
namespace kvant::attn::cuda {

namespace detail {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

/// Errors are summed in the order of the elements: a lane adds its own to what the lane before it has got, and so is
/// one candidate behind it. The last lane compares the sums.
__device__ __forceinline__ uint8_t best_scale_of_quad(const Nvfp4Magnitudes<kQuadUnit>& part, ScalePolicy policy) {
  uint32_t scale = part.scale_for(scale_divisor(policy, 0));
  if (policy == ScalePolicy::kAmax) return static_cast<uint8_t>(scale);
  const float* divisors = kDivisors[policy == ScalePolicy::kSearch ? 1 : 0];
  const int num_candidates = num_scale_candidates(policy), lane = static_cast<int>(threadIdx.x % 4);
  uint32_t best = 0, next = scale;
  float best_error = 0.0f, error = 0.0f;
#pragma unroll 1
  for (int turn = 0; turn < num_candidates + 3; ++turn) {
    const float error_before = __shfl_up_sync(kAllLanes, error, 1);
    const uint32_t scale_before = __shfl_up_sync(kAllLanes, scale, 1);
    scale = lane == 0 ? next : scale_before;
    // The next scale is on its way while this one is tried.
    next = part.scale_for(divisors[min(turn + 1, num_candidates - 1)]);
    const float step = part.step(static_cast<uint8_t>(scale));
    const ExactQuotient quotient(fl_mul(step, part.unscale));
    error = part.add_errors<false>(lane == 0 ? 0.0f : error_before, step, quotient);
    if (turn == lane || error < best_error) best = scale, best_error = error;
  }
  return static_cast<uint8_t>(__shfl_sync(kAllLanes, best, 3, 4));
}

/// The word of eight codes that the lane and its neighbour have parts of.
__device__ __forceinline__ uint32_t place_quad_codes(Nvfp4Magnitudes<kQuadUnit>& part, const float (&values)[kQuadUnit],
                                                     uint8_t scale, CodeOrder order) {
  const float step = fl_mul(part.step(scale), part.unscale);
  const ExactQuotient quotient(step);
  if (quotient.near(fl_mul(part.amax, part.unscale)) >= 6.5f) {
#pragma unroll
    for (float& value : part.unscaled) value = fminf(value, fl_mul(6.5f, step));
  }
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
