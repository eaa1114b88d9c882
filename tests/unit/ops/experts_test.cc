#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/core/thread_pool.h"
#include "ops/experts.h"
#include "test_inputs.h"

namespace kvant::ops {
namespace {

using test::random_values;

TEST(RouteToken, TakesTheLargestAndSharesByThem) {
  const std::vector<float> logits = {0.0f, 2.0f, -1.0f, 1.0f};
  int32_t experts[2];
  float weights[2];
  route_token({.num_experts = 4, .num_used = 2, .normalise = true}, logits.data(), experts, weights);
  EXPECT_EQ(experts[0], 1);
  EXPECT_EQ(experts[1], 3);
  EXPECT_NEAR(weights[0], std::exp(2.0) / (std::exp(2.0) + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(weights[0] + weights[1], 1.0f, 1e-6f);
  route_token({.num_experts = 4, .num_used = 2, .normalise = false}, logits.data(), experts, weights);
  const double all = std::exp(2.0) + std::exp(1.0) + 1.0 + std::exp(-1.0);
  EXPECT_NEAR(weights[0], std::exp(2.0) / all, 1e-6);
  EXPECT_NEAR(weights[1], std::exp(1.0) / all, 1e-6);
}

TEST(RouteToken, TakesTheFirstOfEquals) {
  const std::vector<float> logits = {1.0f, 3.0f, 3.0f, 3.0f};
  int32_t experts[3];
  float weights[3];
  route_token({.num_experts = 4, .num_used = 3, .normalise = true}, logits.data(), experts, weights);
  EXPECT_EQ(std::vector<int32_t>(experts, experts + 3), (std::vector<int32_t>{1, 2, 3}));
}

TEST(SortByExpert, KeepsTokensInOrderWithinAnExpert) {
  const std::vector<int32_t> experts = {2, 0, 1, 2, 2, 0};
  std::vector<int32_t> offsets(5), pairs(6);
  sort_by_expert({.num_experts = 4, .num_used = 2, .normalise = true}, experts.data(), 3, offsets.data(), pairs.data());
  EXPECT_EQ(offsets, (std::vector<int32_t>{0, 2, 3, 6, 6}));
  EXPECT_EQ(pairs, (std::vector<int32_t>{1, 5, 2, 0, 3, 4}));
}

/// A layer of experts with random weights, and what it computes in plain loops.
struct RandomExperts {
  static constexpr int64_t kHidden = 24, kSize = 18;
  ExpertsShape shape{.routing = {.num_experts = 5, .num_used = 2, .normalise = true},
                     .hidden = kHidden,
                     .size = kSize,
                     .gate = {.kind = GateKind::kClampedSwish, .limit = 0.5f}};
  std::vector<float> router = random_values(5 * kHidden, 1), router_bias = random_values(5, 2);
  std::vector<float> gate_up = random_values(5 * 2 * kSize * kHidden, 3),
                     gate_up_bias = random_values(5 * 2 * kSize, 4);
  std::vector<float> down = random_values(5 * kHidden * kSize, 5), down_bias = random_values(5 * kHidden, 6);

  static WeightRows rows_of(const std::vector<float>& values, int64_t columns) {
    return [&values, columns](int64_t begin, int64_t end, float* out) {
      std::copy(values.begin() + begin * columns, values.begin() + end * columns, out);
    };
  }
  std::unique_ptr<Experts> create(LinearFormat format, Stream stream) const {
    return Experts::create(shape,
                           {.router = rows_of(router, kHidden),
                            .gate_up = rows_of(gate_up, kHidden),
                            .down = rows_of(down, kSize),
                            .router_bias = router_bias,
                            .gate_up_bias = gate_up_bias,
                            .down_bias = down_bias},
                           format, 64, stream, nullptr)
        .value();
  }

  static double product(const std::vector<float>& weight, int64_t row, const double* x, int64_t columns) {
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i)
      sum += static_cast<double>(weight[static_cast<size_t>(row * columns + i)]) * x[i];
    return sum;
  }
  std::vector<double> expected(const float* row) const {
    const std::vector<double> x(row, row + kHidden);
    std::vector<float> logits(5);
    for (int64_t e = 0; e < 5; ++e)
      logits[static_cast<size_t>(e)] =
          static_cast<float>(product(router, e, x.data(), kHidden)) + router_bias[static_cast<size_t>(e)];
    int32_t experts[2];
    float weights[2];
    route_token(shape.routing, logits.data(), experts, weights);
    std::vector<double> out(kHidden);
    for (int place = 0; place < 2; ++place) {
      const int64_t e = experts[place];
      std::vector<double> inner(kSize);
      for (int64_t i = 0; i < kSize; ++i) {
        const auto at = [&](int64_t r) {
          return product(gate_up, e * 2 * kSize + r, x.data(), kHidden) +
                 gate_up_bias[static_cast<size_t>(e * 2 * kSize + r)];
        };
        const double g = std::min(at(i), 0.5), u = std::clamp(at(kSize + i), -0.5, 0.5);
        inner[static_cast<size_t>(i)] = g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0);
      }
      for (int64_t c = 0; c < kHidden; ++c)
        out[static_cast<size_t>(c)] += weights[place] * (product(down, e * kHidden + c, inner.data(), kSize) +
                                                         down_bias[static_cast<size_t>(e * kHidden + c)]);
    }
    return out;
  }
};

TEST(Experts, AddWhatEachTokensExpertsGive) {
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  const RandomExperts model;
  const auto experts = model.create(LinearFormat::kF32, stream);
  const auto workspace = experts->create_workspace(40, stream).value();
  for (const int64_t rows : {1, 3, 40}) {
    const std::vector<float> x = random_values(rows * RandomExperts::kHidden, 7);
    std::vector<float> y(x.size(), 2.0f);
    ASSERT_TRUE(experts->run(x.data(), rows, y.data(), *workspace, stream).ok());
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<double> expected = model.expected(x.data() + row * RandomExperts::kHidden);
      for (size_t c = 0; c < expected.size(); ++c)
        ASSERT_NEAR(y[static_cast<size_t>(row * RandomExperts::kHidden) + c], 2.0 + expected[c], 1e-4) << "row " << row;
    }
  }
}

TEST(Experts, GiveARowTheSameBitsInEveryBatch) {
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  const RandomExperts model;
  for (const LinearFormat format : {LinearFormat::kF32, LinearFormat::kInt8}) {
    const auto experts = model.create(format, stream);
    const auto workspace = experts->create_workspace(40, stream).value();
    const std::vector<float> x = random_values(40 * RandomExperts::kHidden, 8);
    std::vector<float> together(x.size());
    ASSERT_TRUE(experts->run(x.data(), 40, together.data(), *workspace, stream).ok());
    for (int64_t row = 0; row < 40; ++row) {
      std::vector<float> alone(RandomExperts::kHidden);
      const int64_t first = row * RandomExperts::kHidden;
      ASSERT_TRUE(experts->run(x.data() + first, 1, alone.data(), *workspace, stream).ok());
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + first)) << "row " << row;
    }
  }
}

TEST(Experts, RefuseMoreUsedThanThereAre) {
  ThreadPool pool(1);
  ExpertsShape shape{.routing = {.num_experts = 4, .num_used = 5}, .hidden = 8, .size = 8, .gate = {}};
  const auto experts = Experts::create(shape, {}, LinearFormat::kF32, 1, Stream::on_cpu(pool), nullptr);
  ASSERT_FALSE(experts);
  EXPECT_EQ(experts.error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::ops
