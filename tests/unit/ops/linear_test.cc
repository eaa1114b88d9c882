#include "ops/linear.h"

#include <algorithm>
#include <cmath>
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
    (*linear)->run(x.data(), num_rows, y.data(), stream);
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

TEST(Linear, RefusesEmptyShapes) {
  ThreadPool pool(1);
  const auto linear = Linear::create(
      LinearFormat::kF32, 0, 4, [](int64_t, int64_t, float*) {}, 1, Stream::on_cpu(pool));
  ASSERT_FALSE(linear);
  EXPECT_EQ(linear.error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::ops
