#include "core/float_bits.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(FloatBits, EveryF16SurvivesARoundTrip) {
  for (uint32_t half = 0; half <= 0xffffu; ++half) {
    const float value = f16_to_float(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
      continue;
    }
    ASSERT_EQ(float_to_f16(value), half);
  }
}

TEST(FloatBits, MatchesTheCompilersF16Conversion) {
  uint32_t state = 1;
  for (int i = 0; i < 2'000'000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = bits_to_float(state);
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_f16(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << std::hexfloat << value;
  }
}

TEST(FloatBits, RoundsBf16TiesToEven) {
  EXPECT_EQ(float_to_bf16(1.0f + 1.0f / 256), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 3.0f / 256), 0x3f82);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace kvant
