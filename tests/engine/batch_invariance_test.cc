#include "support/scheduler_load.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

using testing::LoadAnswer;
using testing::LoadRequest;
using testing::run_load;

/// 32 mixed requests give, token for token, what each gives alone.
class BatchInvariance : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int32_t kRequests = 32;

  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::SchedulerModel>();
    load_ = testing::mixed_load(kRequests, model_->vocabulary(), 1);
  }
  static void TearDownTestSuite() { model_.reset(); }

  /// Each request in an empty scheduler of its own, prompts in one piece.
  static std::vector<LoadAnswer> alone(const char* format) {
    std::vector<LoadAnswer> answers;
    const auto cache = model_->cache(format, 1, false);
    for (LoadRequest request : load_) {
      request.arrives = 0;
      Scheduler scheduler(model_->runner(), *cache, {.max_sequences = 1, .step_tokens = 256});
      answers.push_back(run_load(scheduler, {request})[0]);
    }
    return answers;
  }
  static void expect_same(const std::vector<LoadAnswer>& answers, const std::vector<LoadAnswer>& expected,
                          const std::string& what) {
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, expected[i].tokens) << what << ", request " << i;
      EXPECT_EQ(answers[i].result.reason, expected[i].result.reason) << what << ", request " << i;
    }
  }

  static inline std::unique_ptr<testing::SchedulerModel> model_;
  static inline std::vector<LoadRequest> load_;
};

TEST_P(BatchInvariance, GivesWhatEachRequestGivesAlone) {
  const std::vector<LoadAnswer> expected = alone(GetParam());
  for (const bool prefix_cache : {false, true}) {
    // Room for all, and so little that requests are preempted.
    for (const int64_t pool_tokens : {0, 640}) {
      const std::string what =
          std::string(GetParam()) + (prefix_cache ? ", prefix cache" : "") + (pool_tokens > 0 ? ", little memory" : "");
      const auto cache = model_->cache(GetParam(), 8, prefix_cache, pool_tokens);
      Scheduler scheduler(model_->runner(), *cache, {.max_sequences = 8, .step_tokens = 100});
      expect_same(run_load(scheduler, load_), expected, what);
      if (pool_tokens > 0 && !prefix_cache) {
        EXPECT_GT(scheduler.stats().preemptions, 0) << what;
      }
      if (prefix_cache) {
        EXPECT_GT(scheduler.stats().reused_tokens, 0) << what;
      }
      cache->clear_prefixes();
      EXPECT_EQ(cache->base_pages_used(), 0) << what;
      EXPECT_EQ(cache->exact_pages_used(), 0) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, BatchInvariance,
                         ::testing::Values("f32", "f16", "bf16", "e4m3", "e5m2", "nvfp4", "nvfp4-plain",
                                           "k=e4m3/v=nvfp4", "nvfp4:edges=20,48", "nvfp4:edges=16,0"));

}  // namespace
}  // namespace kvant::engine
