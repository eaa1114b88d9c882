#pragma once

#include <cstdint>

#include "core/float_bits.h"
#include "core/host_device.h"

namespace kvant::attn {

/// Code 0..7 = 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. Round to nearest, ties to the even code, saturating; NaN
/// becomes 0.
KVANT_HD uint8_t float_to_e2m1(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 28) & 8u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0;
  if (magnitude >= 0x40c00000u) return static_cast<uint8_t>(sign | 7u);
  if (magnitude < 0x3f800000u) {
    // Below 1: the sum with 2^22 has an ulp of 0.5.
    const float shifted = fl_add(bits_to_float(magnitude), 4194304.0f);
    return static_cast<uint8_t>(sign | (float_to_bits(shifted) - 0x4a800000u));
  }
  const uint32_t rounded = magnitude + 0x1fffffu + ((magnitude >> 22) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3f000000u) >> 22));
}

KVANT_HD float e2m1_to_float(uint8_t code) {
  // 2^126 moves the exponent bias from 1 to 127 and normalises the subnormal 0.5 exactly.
  const float scaled = fl_mul(bits_to_float(static_cast<uint32_t>(code & 7u) << 22), bits_to_float(0x7e800000u));
  return bits_to_float(float_to_bits(scaled) | (static_cast<uint32_t>(code & 8u) << 28));
}

// Eight codes of a row fill one little-endian 32-bit word. Where element i (0..7) has its magnitude (3 bits, "eem") and
// its sign:
//
//   linear   nibble i.
//   packed   i       0     1     2     3     4     5     6     7
//            byte    1     3     0     2     0     2     1     3
//            kind    A     A     A     A     B     B     B     B     A: sign bit 7, eem bits 3..1
//                                                                    B: sign bit 0, eem bits 6..4
//
// In the packed order an even element and its successor sit 16 bits apart, so a mask and at most two shifts give an
// f16x2 pair (value times 2^-14): w & 0x8E008E00 is elements 0 and 1.

KVANT_HD constexpr int32_t linear_magnitude_shift(int32_t i) { return 4 * i; }
KVANT_HD constexpr int32_t linear_sign_shift(int32_t i) { return 4 * i + 3; }

KVANT_HD constexpr int32_t packed_byte(int32_t i) {
  const int32_t odd_bytes = (i < 2 || i >= 6) ? 1 : 0;
  return odd_bytes + 2 * (i & 1);
}
KVANT_HD constexpr int32_t packed_magnitude_shift(int32_t i) { return 8 * packed_byte(i) + (i < 4 ? 1 : 4); }
KVANT_HD constexpr int32_t packed_sign_shift(int32_t i) { return 8 * packed_byte(i) + (i < 4 ? 7 : 0); }

/// The bits of element i's code in its word.
KVANT_HD constexpr uint32_t linear_code_bits(int32_t i, uint8_t code) {
  return static_cast<uint32_t>(code) << linear_magnitude_shift(i);
}
KVANT_HD constexpr uint32_t packed_code_bits(int32_t i, uint8_t code) {
  return (static_cast<uint32_t>(code & 7u) << packed_magnitude_shift(i)) |
         (static_cast<uint32_t>(code >> 3) << packed_sign_shift(i));
}

/// Element i's code, from its word.
KVANT_HD constexpr uint8_t linear_code(uint32_t word, int32_t i) {
  return static_cast<uint8_t>((word >> linear_magnitude_shift(i)) & 15u);
}
KVANT_HD constexpr uint8_t packed_code(uint32_t word, int32_t i) {
  return static_cast<uint8_t>(((word >> packed_magnitude_shift(i)) & 7u) | ((word >> packed_sign_shift(i)) & 1u) << 3);
}

KVANT_HD constexpr uint32_t linear_to_packed(uint32_t word) {
  uint32_t packed = 0;
  for (int32_t i = 0; i < 8; ++i) packed |= packed_code_bits(i, linear_code(word, i));
  return packed;
}
KVANT_HD constexpr uint32_t packed_to_linear(uint32_t word) {
  uint32_t linear = 0;
  for (int32_t i = 0; i < 8; ++i) linear |= linear_code_bits(i, packed_code(word, i));
  return linear;
}

}  // namespace kvant::attn
