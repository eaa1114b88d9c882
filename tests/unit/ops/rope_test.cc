#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/core/thread_pool.h"
#include "test_inputs.h"

namespace kvant::ops {
namespace {

using test::random_values;

struct RopeCase {
  RopePairs pairs;
  int32_t dim;
  int64_t head_dim;
};

class RopeTest : public testing::TestWithParam<RopeCase> {};

TEST_P(RopeTest, TurnsEveryPairByItsAngle) {
  const auto [pairs, dim, head_dim] = GetParam();
  ThreadPool pool(2);
  constexpr int64_t kHeads = 3;
  const std::vector<int32_t> positions = {0, 1, 5, 4096, 131071};
  const int64_t stride = kHeads * head_dim + 5;
  std::vector<float> factors(static_cast<size_t>(dim / 2), 1.0f);
  factors.back() = 4.0f;
  const std::vector<float> before = random_values(static_cast<int64_t>(positions.size()) * stride, 12);
  std::vector<float> x = before;
  Rope rope({.dim = dim, .theta = 500000.0, .pairs = pairs, .frequency_factors = factors});
  rope.set_positions(positions);
  rope.apply(x.data(), kHeads, head_dim, stride, Stream::on_cpu(pool));

  std::vector<float> expected = before;
  for (size_t token = 0; token < positions.size(); ++token) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int32_t i = 0; i < dim / 2; ++i) {
        const double angle = positions[token] * std::pow(500000.0, -2.0 * i / dim) / factors[static_cast<size_t>(i)];
        const int64_t base = static_cast<int64_t>(token) * stride + head * head_dim;
        const int64_t first = base + (pairs == RopePairs::kHalves ? i : 2 * i);
        const int64_t second = pairs == RopePairs::kHalves ? first + dim / 2 : first + 1;
        const double a = before[first];
        const double b = before[second];
        expected[first] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        expected[second] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
      }
    }
  }
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], expected[i], 2e-6) << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         testing::Values(RopeCase{RopePairs::kHalves, 64, 64}, RopeCase{RopePairs::kHalves, 20, 80},
                                         RopeCase{RopePairs::kInterleaved, 64, 64},
                                         RopeCase{RopePairs::kInterleaved, 22, 96}));

TEST(Rope, LeavesHeadsAloneWhenNoChannelTurns) {
  ThreadPool pool(1);
  Rope rope({.dim = 0});
  rope.set_positions(std::vector<int32_t>{3});
  std::vector<float> x = {1.0f, 2.0f};
  rope.apply(x.data(), 1, 2, 2, Stream::on_cpu(pool));
  EXPECT_EQ(x, (std::vector<float>{1.0f, 2.0f}));
}

TEST(Rope, KeepsScoresWhenAllPositionsShift) {
  ThreadPool pool(1);
  const std::vector<float> q = random_values(64, 13);
  const std::vector<float> k = random_values(64, 14);
  const auto score = [&](int32_t q_position, int32_t k_position) {
    Rope rope({.dim = 64});
    std::vector<float> both = q;
    both.insert(both.end(), k.begin(), k.end());
    rope.set_positions(std::vector<int32_t>{q_position, k_position});
    rope.apply(both.data(), 1, 64, 64, Stream::on_cpu(pool));
    return std::inner_product(both.begin(), both.begin() + 64, both.begin() + 64, 0.0);
  };
  EXPECT_NEAR(score(7, 3), score(1007, 1003), 1e-4);
  EXPECT_GT(std::abs(score(7, 3) - score(7, 4)), 1e-3);
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
  ThreadPool pool(1);
  std::vector<float> plain = random_values(16, 21), scaled = plain;
  const std::vector<int32_t> positions = {5};
  Rope one({.dim = 16}), other({.dim = 16, .scale = 1.5});
  one.set_positions(positions);
  other.set_positions(positions);
  one.apply(plain.data(), 1, 16, 16, Stream::on_cpu(pool));
  other.apply(scaled.data(), 1, 16, 16, Stream::on_cpu(pool));
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(scaled[i], 1.5f * plain[i], 1e-5f);
}

}  // namespace
}  // namespace kvant::ops
