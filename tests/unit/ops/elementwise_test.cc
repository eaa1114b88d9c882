#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/core/thread_pool.h"
#include "ops/activation.h"
#include "ops/decoder_ops.h"
#include "ops/norm.h"
#include "test_inputs.h"

namespace kvant::ops {
namespace {

using test::random_values;

TEST(SiluMul, MatchesTheFormulaForEveryTailLength) {
  for (int64_t count = 0; count <= 37; ++count) {
    std::vector<float> gate = random_values(count, 3, true);
    const std::vector<float> up = random_values(count, 4);
    std::vector<float> out(gate.size() + 1, NAN);
    silu_mul(gate.data(), up.data(), count, out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double expected = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
      EXPECT_NEAR(out[i], expected, 1e-6 * std::abs(expected) + 1e-30);
    }
    EXPECT_TRUE(std::isnan(out.back()));
    silu_mul(gate.data(), up.data(), count, gate.data());
    EXPECT_TRUE(std::equal(gate.begin(), gate.end(), out.begin())) << "in place, count " << count;
  }
}

TEST(SiluMul, StaysFiniteForExtremeGates) {
  const std::vector<float> gate = {-1e30f, -200.0f, -90.0f, 90.0f, 1e30f, 0.0f, -0.0f, -88.0f};
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> out(gate.size());
  silu_mul(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
  EXPECT_NEAR(out[1], 0.0f, 1e-30f);
  EXPECT_EQ(out[3], 90.0f);
  EXPECT_EQ(out[4], 1e30f);
  for (const float value : out) EXPECT_TRUE(std::isfinite(value));
}

TEST(SiluMul, SplitsFusedRows) {
  ThreadPool pool(2);
  constexpr int64_t kRows = 100;
  constexpr int64_t kSize = 513;
  const std::vector<float> fused = random_values(kRows * 2 * kSize, 5);
  std::vector<float> out(kRows * kSize, NAN);
  gate_rows({.kind = GateKind::kSilu}, fused.data(), kRows, kSize, out.data(), Stream::on_cpu(pool));
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<float> expected(kSize);
    silu_mul(fused.data() + row * 2 * kSize, fused.data() + row * 2 * kSize + kSize, kSize, expected.data());
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + row * kSize)) << "row " << row;
  }
}

TEST(Gate, MatchesTheFormulaOfEveryKind) {
  ThreadPool pool(2);
  constexpr int64_t kSize = 37;
  std::vector<float> fused = random_values(2 * kSize, 15);
  for (float& value : fused) value *= 4.0f;
  fused[0] = -100.0f;
  fused[1] = 100.0f;
  const auto swish = [](double x, double slope) { return x / (1.0 + std::exp(-slope * x)); };
  for (const GateKind kind : {GateKind::kSilu, GateKind::kGeluTanh, GateKind::kClampedSwish}) {
    std::vector<float> out(kSize);
    gate_rows({.kind = kind, .limit = 3.0f}, fused.data(), 1, kSize, out.data(), Stream::on_cpu(pool));
    for (size_t i = 0; i < out.size(); ++i) {
      const double g = fused[i], u = fused[kSize + i];
      double expected = swish(g, 1.0) * u;
      if (kind == GateKind::kGeluTanh)
        expected = 0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (g + 0.044715 * g * g * g))) * u;
      if (kind == GateKind::kClampedSwish) expected = swish(std::min(g, 3.0), 1.702) * (std::clamp(u, -3.0, 3.0) + 1.0);
      EXPECT_NEAR(out[i], expected, 2e-6 * std::abs(expected) + 1e-6) << "kind " << static_cast<int>(kind) << ", " << i;
    }
  }
}

TEST(SoftCap, BoundsEveryValueSmoothly) {
  ThreadPool pool(2);
  std::vector<float> x = random_values(3 * 5001, 16);
  for (float& value : x) value *= 50.0f;
  const std::vector<float> before = x;
  soft_cap_rows(x.data(), 3, 5001, 30.0f, Stream::on_cpu(pool));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], 30.0 * std::tanh(before[i] / 30.0), 1e-5 * 30.0) << i;
}

TEST(NormaliseAdd, AddsTheNormedRows) {
  ThreadPool pool(2);
  constexpr int64_t kRows = 5, kDim = 40;
  std::vector<float> x = random_values(kRows * kDim, 17);
  const std::vector<float> weight = random_values(kDim, 18);
  std::vector<float> normed(x.size()), sum(x.size(), 3.0f);
  rms_norm(x.data(), kRows, kDim, weight.data(), 1e-5f, normed.data(), Stream::on_cpu(pool));
  ASSERT_TRUE(
      normalise_add(
          {.x = x.data(), .num_rows = kRows, .dim = kDim, .weight = weight.data(), .epsilon = 1e-5f, .sum = sum.data()},
          Stream::on_cpu(pool))
          .ok());
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], 3.0f + normed[i]);
}

TEST(Add, AddsEveryElementInPlace) {
  for (int64_t count = 0; count <= 21; ++count) {
    std::vector<float> a = random_values(count, 6);
    const std::vector<float> b = random_values(count, 7);
    std::vector<float> expected(a.size());
    for (size_t i = 0; i < a.size(); ++i) expected[i] = a[i] + b[i];
    add(a.data(), b.data(), count, a.data());
    EXPECT_EQ(a, expected);
  }
}

TEST(RmsNorm, MatchesTheFormula) {
  ThreadPool pool(2);
  for (const int64_t dim : {1, 7, 8, 64, 576, 1000}) {
    constexpr int64_t kRows = 70;
    const std::vector<float> x = random_values(kRows * dim, 8);
    const std::vector<float> weight = random_values(dim, 9);
    std::vector<float> out(x.size() + 1, NAN);
    rms_norm(x.data(), kRows, dim, weight.data(), 1e-5f, out.data(), Stream::on_cpu(pool));
    EXPECT_TRUE(std::isnan(out.back()));
    for (int64_t row = 0; row < kRows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < dim; ++i) sum += static_cast<double>(x[row * dim + i]) * x[row * dim + i];
      const double scale = 1.0 / std::sqrt(sum / static_cast<double>(dim) + 1e-5);
      for (int64_t i = 0; i < dim; ++i) {
        const double expected = x[row * dim + i] * scale * weight[i];
        ASSERT_NEAR(out[row * dim + i], expected, 2e-6 * std::abs(expected)) << "row " << row << " channel " << i;
      }
    }
  }
}

TEST(RmsNorm, GivesARowTheSameBitsInEveryBatch) {
  ThreadPool pool(2);
  constexpr int64_t kDim = 576;
  const std::vector<float> x = random_values(200 * kDim, 10);
  const std::vector<float> weight = random_values(kDim, 11);
  std::vector<float> batch(x.size());
  rms_norm(x.data(), 200, kDim, weight.data(), 1e-6f, batch.data(), Stream::on_cpu(pool));
  std::vector<float> single(kDim);
  for (int64_t row = 0; row < 200; ++row) {
    rms_norm(x.data() + row * kDim, 1, kDim, weight.data(), 1e-6f, single.data(), Stream::on_cpu(pool));
    ASSERT_TRUE(std::equal(single.begin(), single.end(), batch.begin() + row * kDim)) << "row " << row;
  }
}

}  // namespace
}  // namespace kvant::ops
