#include "engine/quality/distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvant::engine {
namespace {

TEST(Distribution, MatchesAHandComputedDivergence) {
  // Reference (1/2, 1/4, 1/4), variant (1/4, 1/4, 1/2), both as shifted log-probabilities.
  const std::vector<float> reference_logits{std::log(2.0f) + 5.0f, 5.0f, 5.0f};
  const std::vector<float> variant_logits{-7.0f, -7.0f, std::log(2.0f) - 7.0f};
  ReferenceDistribution reference;
  make_reference(reference_logits, reference);
  EXPECT_EQ(reference.top, 0);
  const TokenScore score = score_token(reference, variant_logits, 2);
  EXPECT_NEAR(score.divergence, 0.5 * std::log(2.0) + 0.25 * std::log(0.5), 1e-6);
  EXPECT_NEAR(score.log_probability, std::log(0.5), 1e-6);
  EXPECT_FALSE(score.same_top);
}

TEST(Distribution, IsZeroAgainstItselfAndStaysFiniteAtExtremes) {
  std::vector<float> logits{1000.0f, -1000.0f, 999.0f, 0.0f};
  ReferenceDistribution reference;
  make_reference(logits, reference);
  const TokenScore same = score_token(reference, logits, 1);
  EXPECT_EQ(same.divergence, 0.0);
  EXPECT_TRUE(same.same_top);
  EXPECT_NEAR(same.log_probability, -2000.0, 1.0);
  // An unlikely token that the variant rules out adds nothing; adding a constant to all logits changes nothing.
  for (float& logit : logits) logit -= 300.0f;
  EXPECT_EQ(score_token(reference, logits, 0).divergence, 0.0);
}

TEST(Distribution, TakesTheLowestIdAmongEqualTops) {
  ReferenceDistribution reference;
  make_reference(std::vector<float>{0.0f, 2.0f, 2.0f}, reference);
  EXPECT_EQ(reference.top, 1);
  EXPECT_FALSE(score_token(reference, std::vector<float>{0.0f, 2.0f, 2.1f}, 0).same_top);
}

TEST(Distribution, InterpolatesQuantiles) {
  EXPECT_EQ(quantile({3.0, 1.0, 2.0}, 0.5), 2.0);
  EXPECT_EQ(quantile({3.0, 1.0}, 1.0), 3.0);
  EXPECT_EQ(quantile({7.0}, 0.99), 7.0);
  std::vector<double> hundred;
  for (int i = 0; i <= 100; ++i) hundred.push_back(i);
  EXPECT_DOUBLE_EQ(quantile(hundred, 0.99), 99.0);
  EXPECT_DOUBLE_EQ(quantile({0.0, 10.0}, 0.25), 2.5);
}

}  // namespace
}  // namespace kvant::engine
