#pragma once

#include <cstdint>

#include "core/float_bits.h"
#include "core/host_device.h"

namespace kvant::attn {

inline constexpr uint16_t kF16Max = 0x7bff;  ///< 65 504
inline constexpr uint16_t kF16Nan = 0x7e00;

/// f16 as KV pages hold it: round to nearest even, saturating to +-65 504 (inf too). Every NaN becomes 0x7e00, because
/// the payload that arithmetic leaves in a NaN differs between processors.
KVANT_HD uint16_t encode_f16(float value) {
  if (is_nan(value)) return kF16Nan;
  const uint16_t half = float_to_f16(value);
  return (half & 0x7fffu) > kF16Max ? static_cast<uint16_t>((half & 0x8000u) | kF16Max) : half;
}

KVANT_HD float decode_f16(uint16_t half) { return f16_to_float(half); }

}  // namespace kvant::attn
