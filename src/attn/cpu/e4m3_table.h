#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace kvant::attn::cpu {

/// Value of every e4m3 byte: one load per block scale.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t exponent = (code >> 3) & 15u;
    const uint32_t mantissa = code & 7u;
    float value = exponent == 0 ? static_cast<float>(mantissa) : static_cast<float>(8 + mantissa);
    for (uint32_t power = exponent == 0 ? 1 : exponent; power < 10; ++power) value *= 0.5f;
    for (uint32_t power = 10; power < exponent; ++power) value *= 2.0f;
    if ((code & 0x7fu) == 0x7fu) value = std::numeric_limits<float>::quiet_NaN();
    values[code] = (code & 0x80u) != 0 ? -value : value;
  }
  return values;
}();

}  // namespace kvant::attn::cpu
