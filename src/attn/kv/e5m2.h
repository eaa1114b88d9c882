#pragma once

#include <cstdint>

#include "core/float_bits.h"
#include "core/host_device.h"

namespace kvant::attn {

inline constexpr float kE5m2Max = 57344.0f;
inline constexpr uint8_t kE5m2Nan = 0x7e;

/// The bare cast: round to nearest even, saturating to +-57 344 (inf too); NaN becomes 0x7e or 0xfe.
KVANT_HD uint8_t float_to_e5m2(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | kE5m2Nan);
  if (magnitude >= 0x47600000u) return static_cast<uint8_t>(sign | 0x7bu);
  // Subnormals: below 2^-14, counted in 2^-16 by the sum with 2^7.
  return static_cast<uint8_t>(sign | round_magnitude<21, 0x38800000u, 0x43000000u, 0x38000000u>(magnitude));
}

/// An e5m2 number is the upper byte of an f16 number.
KVANT_HD float e5m2_to_float(uint8_t code) { return f16_to_float(static_cast<uint16_t>(code << 8)); }

/// The KV quantiser: NaN becomes +0, so that one bad element cannot poison every later query.
KVANT_HD uint8_t encode_e5m2(float x, float g) {
  const float scaled = fl_div(x, g);
  return is_nan(scaled) ? uint8_t{0} : float_to_e5m2(scaled);
}

KVANT_HD float decode_e5m2(uint8_t code, float g) { return fl_mul(e5m2_to_float(code), g); }

}  // namespace kvant::attn
