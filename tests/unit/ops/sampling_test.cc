#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "test_inputs.h"

namespace kvant::ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Logits of these probabilities.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double probability : probabilities) logits.push_back(static_cast<float>(std::log(probability)));
  return logits;
}

std::map<int32_t, int> draw(const SamplingParams& params, const std::vector<float>& logits, int count) {
  Sampler sampler(params);
  std::map<int32_t, int> draws;
  for (int step = 0; step < count; ++step) {
    std::vector<float> copy = logits;
    ++draws[sampler.sample(copy, {}, static_cast<uint64_t>(step))];
  }
  return draws;
}

std::set<int32_t> tokens_of(const std::map<int32_t, int>& draws) {
  std::set<int32_t> tokens;
  for (const auto& [token, count] : draws) tokens.insert(token);
  return tokens;
}

TEST(Argmax, TakesTheLowestIdOnTies) {
  EXPECT_EQ(argmax(std::vector<float>{1.0f, 3.0f, 3.0f, 2.0f}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-kInfinity, -kInfinity}), 0);
  EXPECT_EQ(argmax(std::vector<float>{kNan, -5.0f, kNan, -4.0f}), 3);
}

TEST(LogSoftmax, SumsToOneAndSurvivesLargeLogits) {
  std::vector<float> values = {1000.0f, 999.0f, -1000.0f};
  log_softmax(values, values);
  EXPECT_NEAR(values[0], -std::log(1.0 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(values[1], -1.0 - std::log(1.0 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(values[2], -2000.313f, 1e-2);
  const std::vector<float> logits = test::random_values(1000, 20);
  std::vector<float> out(logits.size());
  log_softmax(logits, out);
  double sum = 0.0;
  for (const float value : out) sum += std::exp(static_cast<double>(value));
  EXPECT_NEAR(sum, 1.0, 1e-6);
}

TEST(RandomUnit, IsUniformOverStepsAndSeeds) {
  constexpr int kDraws = 100'000;
  for (const bool over_seeds : {false, true}) {
    std::vector<int> bins(20, 0);
    double lag_product = 0.0;
    double previous = 0.5;
    for (uint64_t i = 0; i < kDraws; ++i) {
      const double value = over_seeds ? random_unit(i, 0) : random_unit(1, i);
      ASSERT_GE(value, 0.0);
      ASSERT_LT(value, 1.0);
      ++bins[static_cast<size_t>(value * 20)];
      lag_product += (value - 0.5) * (previous - 0.5);
      previous = value;
    }
    double chi_squared = 0.0;
    for (const int count : bins) chi_squared += std::pow(count - kDraws / 20.0, 2) / (kDraws / 20.0);
    EXPECT_LT(chi_squared, 43.8) << "19 degrees of freedom, 0.1 %";
    EXPECT_LT(std::abs(lag_product / kDraws * 12.0), 4.0 / std::sqrt(kDraws)) << "correlation of neighbours";
  }
  EXPECT_EQ(random_unit(7, 9), random_unit(7, 9));
}

TEST(Sampler, IsGreedyAtTemperatureZero) {
  Sampler sampler({});
  std::vector<float> logits = {0.5f, 2.0f, 2.0f};
  for (uint64_t step = 0; step < 20; ++step) EXPECT_EQ(sampler.sample(logits, {}, step), 1);
}

TEST(Sampler, DrawsInProportionToProbabilities) {
  const std::vector<double> probabilities = {0.05, 0.4, 0.25, 0.2, 0.1};
  constexpr int kDraws = 20'000;
  for (const float temperature : {1.0f, 0.5f, 2.0f}) {
    const auto draws = draw({.temperature = temperature, .seed = 42}, logits_of(probabilities), kDraws);
    double sum = 0.0;
    for (const double probability : probabilities) sum += std::pow(probability, 1.0 / temperature);
    double chi_squared = 0.0;
    for (size_t i = 0; i < probabilities.size(); ++i) {
      const double expected = kDraws * std::pow(probabilities[i], 1.0 / temperature) / sum;
      const auto found = draws.find(static_cast<int32_t>(i));
      chi_squared += std::pow((found == draws.end() ? 0 : found->second) - expected, 2) / expected;
    }
    EXPECT_LT(chi_squared, 18.5) << "4 degrees of freedom, 0.1 %, temperature " << temperature;
  }
}

TEST(Sampler, KeepsTheRightTokens) {
  const std::vector<float> logits = logits_of({0.05, 0.4, 0.25, 0.2, 0.1});
  const auto kept = [&](SamplingParams params) {
    params.temperature = 1.0f;
    return tokens_of(draw(params, logits, 2000));
  };
  EXPECT_EQ(kept({}), (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept({.top_k = 1}), (std::set<int32_t>{1}));
  EXPECT_EQ(kept({.top_k = 2}), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(kept({.top_k = 9}), (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept({.top_p = 0.3f}), (std::set<int32_t>{1}));
  EXPECT_EQ(kept({.top_p = 0.5f}), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(kept({.top_p = 0.7f}), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(kept({.min_p = 0.45f}), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(kept({.min_p = 1.0f}), (std::set<int32_t>{1}));
  // Of the two that top-k leaves, 0.4 is 62 %: top-p counts what is left.
  EXPECT_EQ(kept({.top_k = 2, .top_p = 0.6f}), (std::set<int32_t>{1}));
}

TEST(Sampler, BreaksTopKTiesByTheLowerId) {
  const std::vector<float> logits(100, 1.0f);
  EXPECT_EQ(tokens_of(draw({.temperature = 1.0f, .top_k = 3}, logits, 500)), (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, RepeatsItsDrawsForTheSameSeed) {
  const std::vector<float> logits = test::random_values(5000, 21);
  std::vector<int32_t> first, second, other;
  Sampler a({.temperature = 1.0f, .top_p = 0.95f, .seed = 1});
  Sampler b({.temperature = 1.0f, .top_p = 0.95f, .seed = 2});
  for (uint64_t step = 0; step < 30; ++step) {
    std::vector<float> copy = logits;
    first.push_back(a.sample(copy, {}, step));
    other.push_back(b.sample(copy, {}, step));
  }
  // Steps may come in any order: nothing is remembered between draws.
  for (uint64_t step = 30; step-- > 0;) {
    std::vector<float> copy = logits;
    second.insert(second.begin(), a.sample(copy, {}, step));
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
}

TEST(Sampler, PenalisesEachSeenTokenOnce) {
  Sampler sampler({.repetition_penalty = 2.0f});
  std::vector<float> logits = {4.0f, 3.0f, -1.0f, 0.5f};
  const std::vector<int32_t> seen = {0, 0, 2, 77, -1};
  EXPECT_EQ(sampler.sample(logits, {.tokens = seen, .prompt_tokens = 2}, 0), 1);
  EXPECT_EQ(logits, (std::vector<float>{2.0f, 3.0f, -2.0f, 0.5f}));
}

TEST(Sampler, PenalisesTheAnswerByPresenceAndFrequency) {
  Sampler sampler({.presence_penalty = 0.5f, .frequency_penalty = 0.25f});
  std::vector<float> logits = {4.0f, 3.0f, -1.0f, 0.5f};
  const std::vector<int32_t> seen = {0, 1, 2, 1, 1, 3};
  EXPECT_EQ(sampler.sample(logits, {.tokens = seen, .prompt_tokens = 3}, 0), 0) << "prompt tokens do not count";
  EXPECT_EQ(logits, (std::vector<float>{4.0f, 2.0f, -1.0f, -0.25f}));
}

TEST(Sampler, AddsBiasBeforeAnythingElse) {
  Sampler sampler(
      {.logit_bias = {{.token = 2, .bias = 3.0f}, {.token = 1, .bias = -kInfinity}, {.token = 99, .bias = 1}}});
  std::vector<float> logits = {4.0f, 30.0f, 1.5f};
  EXPECT_EQ(sampler.sample(logits, {}, 0), 2);
}

TEST(Sampler, VerifiesDraftsWithoutChangingTheDistribution) {
  const std::vector<double> target = {0.30, 0.05, 0.20, 0.10, 0.15, 0.05, 0.10, 0.05};
  const std::vector<double> proposal = {0.05, 0.40, 0.20, 0.00, 0.05, 0.10, 0.15, 0.05};
  constexpr float kTemperature = 0.7f;
  constexpr int kDraws = 200'000;
  Sampler drafter({.temperature = kTemperature, .seed = 5});
  Sampler sampler({.temperature = kTemperature, .seed = 6});
  std::vector<int> counts(target.size(), 0);
  int num_accepted = 0;
  for (uint64_t step = 0; step < kDraws; ++step) {
    std::vector<float> q_logits = logits_of(proposal), p_logits = logits_of(target);
    const int32_t draft = drafter.sample(q_logits, {}, step);
    q_logits = logits_of(proposal);
    bool accepted = false;
    ++counts[static_cast<size_t>(
        sampler.verify(p_logits, {}, draft, drafter.distribution(q_logits, {}), step, accepted))];
    num_accepted += accepted ? 1 : 0;
  }
  const auto tempered = [&](std::vector<double> values) {
    double sum = 0.0;
    for (double& value : values) sum += value = std::pow(value, 1.0 / kTemperature);
    for (double& value : values) value /= sum;
    return values;
  };
  const std::vector<double> p = tempered(target), q = tempered(proposal);
  double chi_squared = 0.0, overlap = 0.0;
  for (size_t i = 0; i < p.size(); ++i) {
    chi_squared += std::pow(counts[i] - kDraws * p[i], 2) / (kDraws * p[i]);
    overlap += std::min(p[i], q[i]);
  }
  EXPECT_LT(chi_squared, 24.3) << "7 degrees of freedom, 0.1 %";
  EXPECT_NEAR(num_accepted / static_cast<double>(kDraws), overlap, 0.005) << "no draft is refused in vain";
}

TEST(Sampler, VerifiesGreedilyAtTemperatureZero) {
  Sampler sampler({});
  std::vector<float> logits = {1.0f, 3.0f, 2.0f};
  bool accepted = false;
  EXPECT_EQ(sampler.verify(logits, {}, 1, std::vector<Candidate>{{1.0f, 1}}, 0, accepted), 1);
  EXPECT_TRUE(accepted);
  EXPECT_EQ(sampler.verify(logits, {}, 2, std::vector<Candidate>{{1.0f, 2}}, 1, accepted), 1);
  EXPECT_FALSE(accepted);
}

TEST(MostLikely, OrdersByProbabilityThenId) {
  EXPECT_EQ(most_likely(std::vector<float>{-3.0f, -1.0f, -2.0f, -1.0f}, 3), (std::vector<int32_t>{1, 3, 2}));
  EXPECT_EQ(most_likely(std::vector<float>{-3.0f}, 3), (std::vector<int32_t>{0}));
}

TEST(Sampler, NeverDrawsForbiddenTokens) {
  const std::vector<float> logits = {-kInfinity, 0.0f, kNan, 0.1f};
  EXPECT_EQ(tokens_of(draw({.temperature = 5.0f}, logits, 500)), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(tokens_of(draw({.temperature = 5.0f, .top_p = 0.99f}, logits, 500)), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(tokens_of(draw({.temperature = 1.0f}, {kNan, kNan}, 3)), (std::set<int32_t>{0}));
}

TEST(SamplingParams, NamesTheParameterOutOfRange) {
  EXPECT_TRUE(validate({}).ok());
  EXPECT_TRUE(validate({.temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f}).ok());
  const auto refused = [](const SamplingParams& params, const char* name) {
    const Status status = validate(params);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(name), std::string::npos) << status.to_string();
  };
  refused({.temperature = -1.0f}, "temperature");
  refused({.temperature = kNan}, "temperature");
  refused({.top_k = -1}, "top-k");
  refused({.top_p = 0.0f}, "top-p");
  refused({.top_p = 1.5f}, "top-p");
  refused({.min_p = 2.0f}, "min-p");
  refused({.repetition_penalty = 0.0f}, "repetition penalty");
  refused({.presence_penalty = kNan}, "presence penalty");
  refused({.frequency_penalty = 101.0f}, "frequency penalty");
  refused({.logit_bias = {{.token = -1, .bias = 0.0f}}}, "logit bias");
  refused({.logit_bias = {{.token = 1, .bias = kNan}}}, "logit bias");
}

}  // namespace
}  // namespace kvant::ops
