#include "engine/speculation/model_drafter.h"
#include "engine/speculation/ngram_drafter.h"
#include "support/scheduler_load.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

using testing::LoadAnswer;
using testing::LoadRequest;
using testing::run_load;

class SpeculationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::SchedulerModel>();
    load_ = testing::mixed_load(16, model_->vocabulary(), 5, 300);
    // Stochastic drafts give the right distribution, not the same draws.
    for (LoadRequest& request : load_) request.sampling = {};
  }
  static void TearDownTestSuite() { model_.reset(); }

  static std::vector<LoadAnswer> run(Drafter* drafter, EngineStats* stats = nullptr, int32_t max_drafts = 3) {
    const auto cache = model_->cache("nvfp4", 4, false);
    Scheduler scheduler(model_->runner(), *cache,
                        {.max_sequences = 4, .step_tokens = 128, .drafter = drafter, .max_drafts = max_drafts});
    auto answers = run_load(scheduler, load_);
    if (stats != nullptr) *stats = scheduler.stats();
    EXPECT_EQ(cache->base_pages_used() + cache->exact_pages_used(), 0);
    return answers;
  }
  static void expect_same(const std::vector<LoadAnswer>& a, const std::vector<LoadAnswer>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].tokens, b[i].tokens) << i;
      EXPECT_EQ(a[i].result.reason, b[i].result.reason) << i;
    }
  }
  static inline std::unique_ptr<testing::SchedulerModel> model_;
  static inline std::vector<LoadRequest> load_;
};

/// Drafts tokens that are wrong on purpose, or right, by a plain run's answers.
class ScriptedDrafter final : public Drafter {
 public:
  ScriptedDrafter(const std::vector<LoadRequest>& load, const std::vector<LoadAnswer>& answers, int32_t wrong_from)
      : load_(load), answers_(answers), wrong_from_(wrong_from) {}
  Status propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& request : requests) {
      for (size_t i = 0; i < load_.size(); ++i) {
        const auto& prompt = load_[i].prompt;
        if (!std::equal(
                prompt.begin(), prompt.end(), request.tokens.begin(),
                request.tokens.begin() + std::min<std::ptrdiff_t>(std::ssize(prompt), std::ssize(request.tokens))))
          continue;
        const size_t done = request.tokens.size() - prompt.size();
        for (int32_t d = 0; d < request.max_tokens && done + static_cast<size_t>(d) < answers_[i].tokens.size(); ++d)
          request.draft->tokens.push_back(
              (answers_[i].tokens[done + static_cast<size_t>(d)] + (d >= wrong_from_ ? 1 : 0)) % 320);
        break;
      }
    }
    return {};
  }
  void forget(uint64_t) override {}

 private:
  const std::vector<LoadRequest>& load_;
  const std::vector<LoadAnswer>& answers_;
  int32_t wrong_from_;
};

TEST_F(SpeculationTest, ChangesNothingWhetherDraftsAreRightOrWrong) {
  const std::vector<LoadAnswer> plain = run(nullptr);
  for (const int32_t wrong_from : {0, 1, 2, 99}) {
    ScriptedDrafter drafter(load_, plain, wrong_from);
    EngineStats stats;
    expect_same(run(&drafter, &stats), plain);
    ASSERT_EQ(stats.drafted.size(), 3u);
    for (size_t place = 0; place < 3; ++place) {
      EXPECT_EQ(stats.accepted[place] > 0, static_cast<int32_t>(place) < wrong_from) << place;
    }
  }
}

TEST_F(SpeculationTest, DraftsLessWhenDraftsAreRefused) {
  const std::vector<LoadAnswer> plain = run(nullptr);
  EngineStats right, wrong;
  ScriptedDrafter good(load_, plain, 99), bad(load_, plain, 0);
  run(&good, &right);
  run(&bad, &wrong);
  const auto total = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  EXPECT_LT(right.steps, wrong.steps);
  EXPECT_EQ(total(wrong.accepted), 0);
  EXPECT_LT(total(wrong.drafted), wrong.generated_tokens / 2);
}

TEST_F(SpeculationTest, FollowsADraftModel) {
  const std::vector<LoadAnswer> plain = run(nullptr);
  testing::TinyModel same, other({.seed = 2});
  EngineStats same_stats, other_stats;
  ModelDrafter twin(same.runner(), same.cache("bf16"));
  expect_same(run(&twin, &same_stats), plain);
  ModelDrafter stranger(other.runner(), other.cache("bf16"));
  expect_same(run(&stranger, &other_stats), plain);
  EXPECT_GT(same_stats.accepted[0], same_stats.drafted[0] / 2) << "only the cache formats differ";
  EXPECT_GT(same_stats.accepted[0], other_stats.accepted[0]);
}

TEST_F(SpeculationTest, KeepsTheDistributionWithADraftModel) {
  // First tokens of the answer after the one that the prompt gives: sampled with and without drafts, many seeds.
  testing::TinyModel other({.seed = 2});
  constexpr int kDraws = 1500;
  constexpr int32_t kBins = 8;
  const auto counts = [&](Drafter* drafter) {
    std::vector<LoadRequest> load;
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
      // Different seeds with and without drafts: the two samples are independent.
      load.push_back(
          {.prompt = testing::random_tokens(6, 320, 3),
           .max_tokens = 3,
           .sampling = {.temperature = 0.7f, .top_k = kBins, .seed = seed + (drafter != nullptr ? 7777u : 0u)}});
    }
    const auto cache = model_->cache("bf16", 16, true);
    Scheduler scheduler(model_->runner(), *cache,
                        {.max_sequences = 4, .step_tokens = 64, .drafter = drafter, .max_drafts = 2});
    std::vector<double> bins(320, 0.0);
    for (const LoadAnswer& answer : run_load(scheduler, load)) bins[static_cast<size_t>(answer.tokens[1])] += 1.0;
    return bins;
  };
  ModelDrafter drafter(other.runner(), other.cache("bf16"));
  const std::vector<double> plain = counts(nullptr), drafted = counts(&drafter);
  double chi_squared = 0.0;
  int degrees = -1;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] + drafted[i] < 10) continue;
    chi_squared += std::pow(plain[i] - drafted[i], 2) / (plain[i] + drafted[i]);
    ++degrees;
  }
  ASSERT_GT(degrees, 3);
  // Mean and three and a half standard deviations of chi squared.
  EXPECT_LT(chi_squared, degrees + 3.5 * std::sqrt(2.0 * degrees)) << degrees;
}

TEST_F(SpeculationTest, ReportsTheSameLogprobs) {
  LoadRequest request{.prompt = testing::load_prompt(60, 0, 320, 3), .max_tokens = 30, .logprobs = 2};
  const auto logprobs = [&](Drafter* drafter) {
    const auto cache = model_->cache("bf16", 2, false);
    Scheduler scheduler(model_->runner(), *cache,
                        {.max_sequences = 2, .step_tokens = 64, .drafter = drafter, .max_drafts = 4});
    std::vector<float> out;
    const std::vector<LoadAnswer> answers = run_load(scheduler, {request});
    for (const TokenLogprobs& item : answers[0].logprobs) {
      out.push_back(item.chosen.logprob);
      for (const TokenLogprob& other : item.top) out.push_back(other.logprob);
    }
    return out;
  };
  NgramDrafter drafter;
  const std::vector<float> plain = logprobs(nullptr);
  EXPECT_EQ(plain.size(), 90u);
  EXPECT_EQ(logprobs(&drafter), plain);
}

}  // namespace
}  // namespace kvant::engine
