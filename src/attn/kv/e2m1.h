#pragma once

#include <cstdint>

#include "core/float_bits.h"
#include "core/host_device.h"

namespace kvant::attn {

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
