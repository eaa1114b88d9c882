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

/// A float's magnitude rounded, ties to even, to a format with kShift fewer mantissa bits. Below the format's smallest
/// normal number, kMinNormal, the sum with kMagic has an ulp of the smallest subnormal: its low bits count those.
/// The magnitude must not round beyond the format's largest number. All three are bits of floats; kRebias moves the
/// exponent.
template <int kShift, uint32_t kMinNormal, uint32_t kMagic, uint32_t kRebias>
KVANT_HD uint32_t round_magnitude(uint32_t magnitude) {
  if (magnitude < kMinNormal) return float_to_bits(fl_add(bits_to_float(magnitude), bits_to_float(kMagic))) - kMagic;
  const uint32_t rounded = magnitude + ((1u << (kShift - 1)) - 1u) + ((magnitude >> kShift) & 1u);
  return (rounded - kRebias) >> kShift;
}

/// Round to nearest even; NaN stays NaN (quiet), overflow becomes inf.
KVANT_HD uint16_t float_to_f16(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  // Subnormals: below 2^-14, counted in 2^-24 by the sum with 2^-1.
  return static_cast<uint16_t>(sign | round_magnitude<13, 0x38800000u, 0x3f000000u, 0x38000000u>(magnitude));
}

inline constexpr uint8_t kE4m3Nan = 0x7f;

/// The bare cast: round to nearest even, saturating to +-448 (inf too); NaN becomes 0x7f or 0xff.
KVANT_HD uint8_t float_to_e4m3(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | kE4m3Nan);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);
  // Subnormals: below 2^-6, counted in 2^-9 by the sum with 2^14.
  return static_cast<uint8_t>(sign | round_magnitude<20, 0x3c800000u, 0x46800000u, 0x3c000000u>(magnitude));
}

KVANT_HD float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == kE4m3Nan) return bits_to_float(sign | 0x7fc00000u);
  // 2^120 moves the exponent bias from 7 to 127 and normalises subnormals exactly.
  const float scaled = fl_mul(bits_to_float(magnitude << 20), bits_to_float(0x7b800000u));
  return bits_to_float(float_to_bits(scaled) | sign);
}

/// Code 0..7 = 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. Round to nearest, ties to the even code, saturating; NaN
/// becomes 0.
KVANT_HD uint8_t float_to_e2m1(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 28) & 8u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0;
  if (magnitude >= 0x40c00000u) return static_cast<uint8_t>(sign | 7u);
  // Its subnormal: below 1, counted in 0.5 by the sum with 2^22.
  return static_cast<uint8_t>(sign | round_magnitude<22, 0x3f800000u, 0x4a800000u, 0x3f000000u>(magnitude));
}

KVANT_HD float e2m1_to_float(uint8_t code) {
  // 2^126 moves the exponent bias from 1 to 127 and normalises the subnormal 0.5 exactly.
  const float scaled = fl_mul(bits_to_float(static_cast<uint32_t>(code & 7u) << 22), bits_to_float(0x7e800000u));
  return bits_to_float(float_to_bits(scaled) | (static_cast<uint32_t>(code & 8u) << 28));
}

}  // namespace kvant
