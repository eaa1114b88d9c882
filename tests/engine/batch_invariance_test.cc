#include "engine/speculation/ngram_drafter.h"
#include "support/scheduler_load.h"

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

struct Mode {
  const char* name;
  bool prefix_cache = false;
  bool speculate = false;
  int64_t pool_tokens = 0;  ///< 0 = room for all, else so little that requests are preempted.
};
constexpr Mode kModes[] = {{.name = "plain"},
                           {.name = "little memory", .pool_tokens = 640},
                           {.name = "prefix cache", .prefix_cache = true},
                           {.name = "speculation", .speculate = true},
                           {.name = "prefix cache, speculation", .prefix_cache = true, .speculate = true},
                           {.name = "all of it", .prefix_cache = true, .speculate = true, .pool_tokens = 640}};

TEST_P(BatchInvariance, GivesWhatEachRequestGivesAlone) {
  const std::vector<LoadAnswer> expected = alone(GetParam());
  NgramDrafter drafter;
  for (const Mode& mode : kModes) {
    const std::string what = std::string(GetParam()) + ", " + mode.name;
    const auto cache = model_->cache(GetParam(), 8, mode.prefix_cache, mode.pool_tokens);
    Scheduler scheduler(
        model_->runner(), *cache,
        {.max_sequences = 8, .step_tokens = 100, .drafter = mode.speculate ? &drafter : nullptr, .max_drafts = 4});
    expect_same(run_load(scheduler, load_), expected, what);
    const EngineStats stats = scheduler.stats();
    EXPECT_EQ(stats.preemptions > 0, mode.pool_tokens > 0) << what;
    EXPECT_EQ(stats.reused_tokens > 0, mode.prefix_cache) << what;
    EXPECT_EQ(!stats.accepted.empty() && stats.accepted[0] > 0, mode.speculate) << what;
    cache->clear_prefixes();
    EXPECT_EQ(cache->base_pages_used(), 0) << what;
    EXPECT_EQ(cache->exact_pages_used(), 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, BatchInvariance,
                         ::testing::Values("f32", "f16", "bf16", "e4m3", "e5m2", "nvfp4", "nvfp4-plain",
                                           "k=e4m3/v=nvfp4", "nvfp4:edges=20,48", "nvfp4:edges=16,0"));

}  // namespace
}  // namespace kvant::engine
