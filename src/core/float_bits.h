#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace kvant {

// One IEEE fp32 operation each, round to nearest even, never fused: `fl()` of the KV format specification.
// Host code gets the same by -ffp-contract=off, which the build sets for every target.
#if defined(__CUDA_ARCH__)
KVANT_HD float fl_add(float a, float b) { return __fadd_rn(a, b); }
KVANT_HD float fl_sub(float a, float b) { return __fsub_rn(a, b); }
KVANT_HD float fl_mul(float a, float b) { return __fmul_rn(a, b); }
KVANT_HD float fl_div(float a, float b) { return __fdiv_rn(a, b); }
#else
KVANT_HD float fl_add(float a, float b) { return a + b; }
KVANT_HD float fl_sub(float a, float b) { return a - b; }
KVANT_HD float fl_mul(float a, float b) { return a * b; }
KVANT_HD float fl_div(float a, float b) { return a / b; }
#endif

KVANT_HD uint32_t float_to_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}

KVANT_HD float bits_to_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

KVANT_HD bool is_nan(float value) { return (float_to_bits(value) & 0x7fffffffu) > 0x7f800000u; }

KVANT_HD float bf16_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

/// Round to nearest even; NaN stays NaN (quiet), overflow becomes inf.
KVANT_HD uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

KVANT_HD float f16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Scaling by 2^112 moves the exponent bias from 15 to 127 and normalises subnormals exactly.
  const float scaled = bits_to_float(magnitude << 13) * bits_to_float(0x77800000u);
  return bits_to_float(float_to_bits(scaled) | sign);
}

/// Round to nearest even; NaN stays NaN (quiet), overflow becomes inf.
KVANT_HD uint16_t float_to_f16(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // The sum with 0.5 has an ulp of 2^-24, the smallest subnormal of f16.
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace kvant
