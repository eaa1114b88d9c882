#pragma once

#include <cstdint>

#include "core/float_bits.h"
#include "core/host_device.h"

namespace kvant::attn {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3Nan = 0x7f;

/// The bare cast: round to nearest even, saturating to +-448 (inf too); NaN becomes 0x7f or 0xff.
KVANT_HD uint8_t float_to_e4m3(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | kE4m3Nan);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);
  if (magnitude < 0x3c800000u) {
    // Below 2^-6: the sum with 2^14 has an ulp of 2^-9, the smallest subnormal of e4m3.
    const float shifted = fl_add(bits_to_float(magnitude), 16384.0f);
    return static_cast<uint8_t>(sign | (float_to_bits(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
}

KVANT_HD float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == kE4m3Nan) return bits_to_float(sign | 0x7fc00000u);
  // 2^120 moves the exponent bias from 7 to 127 and normalises subnormals exactly.
  const float scaled = fl_mul(bits_to_float(magnitude << 20), bits_to_float(0x7b800000u));
  return bits_to_float(float_to_bits(scaled) | sign);
}

/// The KV quantiser: NaN becomes +0, so that one bad element cannot poison every later query.
KVANT_HD uint8_t encode_e4m3(float x, float g) {
  const float scaled = fl_div(x, g);
  return is_nan(scaled) ? uint8_t{0} : float_to_e4m3(scaled);
}

KVANT_HD float decode_e4m3(uint8_t code, float g) { return fl_mul(e4m3_to_float(code), g); }

}  // namespace kvant::attn
