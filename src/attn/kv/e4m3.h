#pragma once

#include <cstdint>

#include "core/float_bits.h"
#include "core/host_device.h"

namespace kvant::attn {

inline constexpr float kE4m3Max = 448.0f;

/// The KV quantiser: NaN becomes +0, so that one bad element cannot poison every later query.
KVANT_HD uint8_t encode_e4m3(float x, float g) {
  const float scaled = fl_div(x, g);
  return is_nan(scaled) ? uint8_t{0} : float_to_e4m3(scaled);
}

KVANT_HD float decode_e4m3(uint8_t code, float g) { return fl_mul(e4m3_to_float(code), g); }

}  // namespace kvant::attn
