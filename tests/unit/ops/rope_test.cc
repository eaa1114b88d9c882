#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::ops {
namespace {

TEST(Rope, TabulatesTheAngleOfEveryPair) {
  const std::vector<int32_t> positions = {0, 1, 5, 4096, 131071};
  for (const int32_t dim : {64, 20, 22}) {
    std::vector<float> factors(static_cast<size_t>(dim / 2), 1.0f);
    factors.back() = 4.0f;
    Rope rope({.dim = dim, .theta = 500000.0, .frequency_factors = factors});
    rope.set_positions(positions);
    ASSERT_EQ(rope.num_pairs(), dim / 2);
    for (size_t token = 0; token < positions.size(); ++token) {
      for (int32_t i = 0; i < dim / 2; ++i) {
        const double angle = positions[token] * std::pow(500000.0, -2.0 * i / dim) / factors[static_cast<size_t>(i)];
        const size_t at = token * static_cast<size_t>(dim / 2) + static_cast<size_t>(i);
        EXPECT_NEAR(rope.cosines()[at], std::cos(angle), 2e-7) << "position " << positions[token] << ", pair " << i;
        EXPECT_NEAR(rope.sines()[at], std::sin(angle), 2e-7) << "position " << positions[token] << ", pair " << i;
      }
    }
  }
}

TEST(Llama3FrequencyFactors, KeepsHighAndDividesLowFrequencies) {
  const std::vector<float> factors = llama3_frequency_factors(128, 500000.0, {});
  EXPECT_EQ(factors.front(), 1.0f);
  EXPECT_EQ(factors.back(), 8.0f);
  for (size_t i = 1; i < factors.size(); ++i) EXPECT_GE(factors[i], factors[i - 1]);
  // Pair 30: frequency 500000^(-60/128), 2.778 turns in 8192 positions, smooth = 1.778 / 3.
  const double turns = 8192.0 * std::pow(500000.0, -60.0 / 128.0) / 6.283185307179586;
  const double smooth = (turns - 1.0) / 3.0;
  EXPECT_NEAR(factors[30], 1.0 / (smooth + (1.0 - smooth) / 8.0), 1e-6);
}

TEST(Rope, RampsYarnFactorsBetweenFastAndSlowPairs) {
  // Pairs turn 32 times and once in 4096 positions at 15.6 and 31.1 of 32.
  const YarnScaling scaling{.factor = 8.0, .original_context = 4096.0, .whole_pairs = true};
  const std::vector<float> factors = yarn_frequency_factors(64, 1e4, scaling);
  ASSERT_EQ(factors.size(), 32u);
  const double low = std::floor(64 * std::log(4096 / (32 * 2 * std::numbers::pi)) / (2 * std::log(1e4)));
  const double high = std::ceil(64 * std::log(4096 / (2 * std::numbers::pi)) / (2 * std::log(1e4)));
  for (size_t i = 0; i < factors.size(); ++i) {
    const double kept = 1.0 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(factors[i], 1.0 / (kept + (1.0 - kept) / 8.0), 1e-5) << i;
  }
  EXPECT_EQ(factors[0], 1.0f);
  EXPECT_GT(factors[20], 1.0f);
}

TEST(Rope, ScalesWhatItTurns) {
  const std::vector<int32_t> positions = {5};
  Rope one({.dim = 16}), other({.dim = 16, .scale = 1.5});
  one.set_positions(positions);
  other.set_positions(positions);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(other.cosines()[i], 1.5f * one.cosines()[i], 1e-6f);
    EXPECT_NEAR(other.sines()[i], 1.5f * one.sines()[i], 1e-6f);
  }
}

}  // namespace
}  // namespace kvant::ops
