#include "ops/linear.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/core/thread_pool.h"
#include "test_inputs.h"

namespace kvant::ops {
namespace {

using test::random_values;

WeightRows rows_of(const std::vector<float>& weight, int64_t in_features) {
  return [&weight, in_features](int64_t begin, int64_t end, float* out) {
    std::copy(weight.begin() + begin * in_features, weight.begin() + end * in_features, out);
  };
}

struct Problem {
  int64_t out_features;
  int64_t in_features;
  int64_t max_rows;
};

class LinearF32 : public testing::TestWithParam<Problem> {};

TEST(LinearOutput, IsAddedToTheResidualStream) {
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  const std::vector<float> weight = random_values(48 * 32, 1);
  const std::vector<float> x = random_values(3 * 32, 2), before = random_values(3 * 48, 3);
  auto linear = Linear::create(LinearFormat::kF32, 48, 32, rows_of(weight, 32), 3, stream);
  ASSERT_TRUE(linear) << linear.error().to_string();
  std::vector<float> product(3 * 48), scratch(3 * 48), sum = before;
  ASSERT_TRUE((*linear)->run({.x = x.data(), .num_rows = 3, .y = product.data()}, stream).ok());
  ASSERT_TRUE((*linear)
                  ->run({.x = x.data(),
                         .num_rows = 3,
                         .y = sum.data(),
                         .output = LinearOutput::kAddF32,
                         .scratch = scratch.data()},
                        stream)
                  .ok());
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], before[i] + product[i]) << i;
}

TEST_P(LinearF32, MatchesADoublePrecisionProduct) {
  const auto [out_features, in_features, max_rows] = GetParam();
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  const std::vector<float> weight = random_values(out_features * in_features, 1);
  const std::vector<float> x = random_values(max_rows * in_features, 2);
  auto linear =
      Linear::create(LinearFormat::kF32, out_features, in_features, rows_of(weight, in_features), max_rows, stream);
  ASSERT_TRUE(linear) << linear.error().to_string();
  EXPECT_EQ((*linear)->out_features(), out_features);
  EXPECT_EQ((*linear)->in_features(), in_features);
  EXPECT_GE((*linear)->weight_bytes(), out_features * in_features * 4);
  for (const int64_t num_rows : {int64_t{1}, std::min<int64_t>(3, max_rows), max_rows}) {
    std::vector<float> y(static_cast<size_t>(num_rows * out_features + 1), NAN);
    ASSERT_TRUE((*linear)->run({.x = x.data(), .num_rows = num_rows, .y = y.data()}, stream).ok());
    EXPECT_TRUE(std::isnan(y.back())) << "wrote past the output";
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t out = 0; out < out_features; ++out) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t in = 0; in < in_features; ++in) {
          const double term = static_cast<double>(x[row * in_features + in]) * weight[out * in_features + in];
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(y[row * out_features + out], sum, 1e-6 * magnitude) << "row " << row << " output " << out;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearF32,
                         testing::Values(Problem{1, 1, 1}, Problem{7, 5, 3}, Problem{64, 48, 16}, Problem{33, 129, 21},
                                         Problem{192, 576, 5}, Problem{100, 64, 600}));

class LinearInt8 : public testing::TestWithParam<Problem> {};

/// What the documented rule makes of a weight row: the nearest of 255 steps of the row's largest magnitude.
std::vector<double> int8_weight(const std::vector<float>& weight, int64_t in_features) {
  std::vector<double> rounded(weight.size());
  for (size_t begin = 0; begin < weight.size(); begin += static_cast<size_t>(in_features)) {
    const auto row = std::span(weight).subspan(begin, static_cast<size_t>(in_features));
    float largest = 0.0f;
    for (const float value : row) largest = std::max(largest, std::abs(value));
    const float scale = largest / 127.0f;
    for (size_t i = 0; i < row.size(); ++i) {
      rounded[begin + i] = scale == 0.0f ? 0.0 : std::nearbyint(row[i] / scale) * static_cast<double>(scale);
    }
  }
  return rounded;
}

TEST_P(LinearInt8, MatchesTheProductWithRoundedWeights) {
  const auto [out_features, in_features, max_rows] = GetParam();
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  std::vector<float> weight = random_values(out_features * in_features, 1);
  std::fill(weight.begin(), weight.begin() + in_features, 0.0f);
  const std::vector<double> rounded = int8_weight(weight, in_features);
  std::vector<float> x = random_values(max_rows * in_features, 2, true);
  std::fill(x.end() - in_features, x.end(), 0.0f);
  auto linear =
      Linear::create(LinearFormat::kInt8, out_features, in_features, rows_of(weight, in_features), max_rows, stream);
  ASSERT_TRUE(linear) << linear.error().to_string();
  for (const int64_t num_rows : {int64_t{1}, std::min<int64_t>(3, max_rows), max_rows}) {
    std::vector<float> y(static_cast<size_t>(num_rows * out_features + 1), NAN);
    ASSERT_TRUE((*linear)->run({.x = x.data(), .num_rows = num_rows, .y = y.data()}, stream).ok());
    EXPECT_TRUE(std::isnan(y.back())) << "wrote past the output";
    for (int64_t row = 0; row < num_rows; ++row) {
      float largest = 0.0f;
      for (int64_t in = 0; in < in_features; ++in) largest = std::max(largest, std::abs(x[row * in_features + in]));
      for (int64_t out = 0; out < out_features; ++out) {
        double sum = 0;
        double magnitude = 0;
        double weight_sum = 0;
        for (int64_t in = 0; in < in_features; ++in) {
          const double term = static_cast<double>(x[row * in_features + in]) * rounded[out * in_features + in];
          sum += term;
          magnitude += std::abs(term);
          weight_sum += std::abs(rounded[out * in_features + in]);
        }
        // Half a step of activations of at least 11 bits, and fp32 rounding of the result.
        const double tolerance = 0.5 * largest / 2048.0 * weight_sum + 1e-6 * magnitude;
        ASSERT_NEAR(y[row * out_features + out], sum, tolerance) << "row " << row << " output " << out;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearInt8,
                         testing::Values(Problem{1, 1, 1}, Problem{7, 5, 3}, Problem{64, 48, 16}, Problem{33, 129, 21},
                                         Problem{192, 576, 13}, Problem{100, 64, 600}, Problem{40, 8192, 30}));

TEST(LinearInt8Accuracy, ErrorComesFromWeightsAlone) {
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  constexpr int64_t kSize = 576;
  const std::vector<float> weight = random_values(kSize * kSize, 3);
  const std::vector<double> rounded = int8_weight(weight, kSize);
  const std::vector<float> x = random_values(16 * kSize, 4, true);
  auto linear = Linear::create(LinearFormat::kInt8, kSize, kSize, rows_of(weight, kSize), 16, stream);
  ASSERT_TRUE(linear);
  std::vector<float> y(16 * kSize);
  ASSERT_TRUE((*linear)->run({.x = x.data(), .num_rows = 16, .y = y.data()}, stream).ok());
  double error_of_activations = 0, error_of_weights = 0, power = 0;
  for (int64_t row = 0; row < 16; ++row) {
    for (int64_t out = 0; out < kSize; ++out) {
      double exact = 0, with_rounded = 0;
      for (int64_t in = 0; in < kSize; ++in) {
        exact += static_cast<double>(x[row * kSize + in]) * weight[out * kSize + in];
        with_rounded += x[row * kSize + in] * rounded[out * kSize + in];
      }
      error_of_activations += std::pow(y[row * kSize + out] - with_rounded, 2);
      error_of_weights += std::pow(with_rounded - exact, 2);
      power += exact * exact;
    }
  }
  EXPECT_LT(std::sqrt(error_of_weights / power), 0.01);
  EXPECT_LT(std::sqrt(error_of_activations / error_of_weights), 0.05);
}

TEST(LinearInt8Accuracy, SurvivesTheLargestSums) {
  // Every product has the same sign and the largest magnitude: one more bit of activations would overflow.
  ThreadPool pool(1);
  const Stream stream = Stream::on_cpu(pool);
  constexpr int64_t kInputs = 16384;
  const std::vector<float> weight(kInputs, -1.0f);
  const std::vector<float> x(kInputs, 3.0f);
  auto linear = Linear::create(LinearFormat::kInt8, 1, kInputs, rows_of(weight, kInputs), 1, stream);
  ASSERT_TRUE(linear);
  float y = 0.0f;
  ASSERT_TRUE((*linear)->run({.x = x.data(), .num_rows = 1, .y = &y}, stream).ok());
  EXPECT_NEAR(y, -3.0f * kInputs, 3e-6f * kInputs);
}

TEST(LinearInt8Accuracy, KeepsBadRowsToThemselves) {
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  const std::vector<float> weight = random_values(20 * 37, 5);
  std::vector<float> x = random_values(4 * 37, 6);
  x[36] = std::numeric_limits<float>::quiet_NaN();
  x[37 + 3] = -std::numeric_limits<float>::infinity();
  auto linear = Linear::create(LinearFormat::kInt8, 20, 37, rows_of(weight, 37), 4, stream);
  ASSERT_TRUE(linear);
  std::vector<float> y(4 * 20, 0.0f);
  ASSERT_TRUE((*linear)->run({.x = x.data(), .num_rows = 4, .y = y.data()}, stream).ok());
  for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(std::isnan(y[i]), i < 40) << "element " << i;
}

class LinearBatchInvariance : public testing::TestWithParam<LinearFormat> {};

TEST_P(LinearBatchInvariance, RowsKeepTheirBitsInAnyBatchAndTeam) {
  constexpr int64_t kRows = 150;
  for (const auto& [out_features, in_features] : {std::pair<int64_t, int64_t>{576, 1536}, {960, 576}, {33, 129}}) {
    const std::vector<float> weight = random_values(out_features * in_features, 7);
    const std::vector<float> x = random_values(kRows * in_features, 8, true);
    std::vector<float> expected(static_cast<size_t>(kRows * out_features));
    for (const int num_threads : {1, 2, 3}) {
      ThreadPool pool(num_threads);
      const Stream stream = Stream::on_cpu(pool);
      auto linear = Linear::create(GetParam(), out_features, in_features, rows_of(weight, in_features), kRows, stream);
      ASSERT_TRUE(linear) << linear.error().to_string();
      if (num_threads == 1) {
        ASSERT_TRUE((*linear)->run({.x = x.data(), .num_rows = kRows, .y = expected.data()}, stream).ok());
      }
      for (const int64_t num_rows : {1, 2, 5, 7, 16, 31, 64, 150}) {
        const int64_t first = std::min<int64_t>(11, kRows - num_rows);
        std::vector<float> y(static_cast<size_t>(num_rows * out_features));
        ASSERT_TRUE(
            (*linear)->run({.x = x.data() + first * in_features, .num_rows = num_rows, .y = y.data()}, stream).ok());
        ASSERT_TRUE(std::equal(y.begin(), y.end(), expected.begin() + first * out_features))
            << num_rows << " rows of " << out_features << " x " << in_features << " on " << num_threads << " threads";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearBatchInvariance, testing::Values(LinearFormat::kF32, LinearFormat::kInt8),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(Linear, RefusesEmptyShapes) {
  ThreadPool pool(1);
  const auto linear = Linear::create(
      LinearFormat::kF32, 0, 4, [](int64_t, int64_t, float*) {}, 1, Stream::on_cpu(pool));
  ASSERT_FALSE(linear);
  EXPECT_EQ(linear.error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::ops
