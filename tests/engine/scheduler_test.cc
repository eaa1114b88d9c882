#include "engine/speculation/ngram_drafter.h"
#include "support/random_rounds.h"
#include "support/scheduler_load.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;
using testing::LoadAnswer;
using testing::LoadRequest;
using testing::run_load;

class SchedulerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = std::make_unique<testing::SchedulerModel>(); }
  static void TearDownTestSuite() { model_.reset(); }

  static std::unique_ptr<Scheduler> scheduler(KvCacheSet& cache, int32_t max_sequences, int32_t step_tokens = 256) {
    return std::make_unique<Scheduler>(model_->runner(), cache,
                                       SchedulerOptions{.max_sequences = max_sequences, .step_tokens = step_tokens});
  }
  static std::vector<int32_t> tokens(int32_t count, uint32_t seed) {
    return testing::random_tokens(count, model_->vocabulary(), seed);
  }
  static void expect_no_pages(KvCacheSet& cache) {
    cache.clear_prefixes();
    EXPECT_EQ(cache.base_pages_used(), 0);
    EXPECT_EQ(cache.exact_pages_used(), 0);
  }

  static inline std::unique_ptr<testing::SchedulerModel> model_;
};

TEST_F(SchedulerTest, RunsManyRequestsInOneBatch) {
  const auto cache = model_->cache("bf16", 8, false);
  const auto serving = scheduler(*cache, 8);
  std::vector<LoadRequest> load;
  for (uint32_t i = 0; i < 8; ++i) load.push_back({.prompt = tokens(20, i), .max_tokens = 10});
  run_load(*serving, load);
  // One step reads all prompts (8 x 20 tokens fit) and gives the first tokens, nine more give the others.
  EXPECT_EQ(serving->stats().steps, 10);
  EXPECT_EQ(serving->stats().generated_tokens, 80);
  EXPECT_EQ(serving->stats().finished, 8);
  expect_no_pages(*cache);
}

TEST_F(SchedulerTest, DecodesWhileALongPromptIsRead) {
  const auto cache = model_->cache("bf16", 4, false);
  const auto serving = scheduler(*cache, 4, 64);
  const std::vector<LoadRequest> load = {{.prompt = tokens(5, 1), .max_tokens = 12},
                                         {.prompt = tokens(600, 2), .max_tokens = 2, .arrives = 1}};
  std::vector<int64_t> generated;
  run_load(*serving, load, [&](Scheduler& s) { generated.push_back(s.stats().generated_tokens); });
  for (size_t step = 1; step < 10; ++step) EXPECT_EQ(generated[step] - generated[step - 1], 1) << step;
}

TEST_F(SchedulerTest, SharesAStepBetweenLongAndShortPrompts) {
  const auto cache = model_->cache("nvfp4", 4, false);
  const auto serving = scheduler(*cache, 4, 64);
  std::vector<LoadRequest> load = {{.prompt = tokens(900, 1), .max_tokens = 1},
                                   {.prompt = tokens(60, 2), .max_tokens = 1, .arrives = 1}};
  const auto answers = run_load(*serving, load);
  EXPECT_LT(answers[1].result.prompt_seconds, answers[0].result.prompt_seconds / 2)
      << "the short prompt takes two or three steps, the long one fifteen";
}

TEST_F(SchedulerTest, RefusesAtTheDoorWhatCanNeverFit) {
  const auto cache = model_->cache("bf16", 4, false, 100);
  const auto serving = scheduler(*cache, 4);
  const auto refusal = [&](TokenRequest request) { return serving->check(request).message(); };
  EXPECT_THAT(refusal({.prompt = tokens(80, 1), .max_tokens = 40}),
              HasSubstr("120 tokens needs 8 base and 0 exact pages of 16 tokens; the KV cache has 7 and 0 (prompt 80, "
                        "answer up to 40)"));
  EXPECT_EQ(refusal({.prompt = tokens(80, 1), .max_tokens = 30}), "");
  EXPECT_THAT(refusal({.prompt = tokens(1024, 1), .max_tokens = 1}), HasSubstr("the prompt has 1024 tokens"));
  EXPECT_THAT(refusal({.prompt = {1, 320}}), HasSubstr("token id 320 is outside"));
  EXPECT_THAT(refusal({.prompt = {}}), HasSubstr("empty"));
  EXPECT_THAT(refusal({.prompt = {1}, .max_tokens = -1}), HasSubstr("max_tokens -1"));
  EXPECT_THAT(refusal({.prompt = {1}, .sampling = {.top_p = 2.0f}}), HasSubstr("top-p"));
}

TEST_F(SchedulerTest, PreemptsTheYoungestAndFinishesAll) {
  // 8 pages for 6 requests that grow to 7 pages each.
  for (const char* format : {"bf16", "nvfp4-plain"}) {
    const auto cache = model_->cache(format, 6, false, 128);
    const auto serving = scheduler(*cache, 6);
    std::vector<LoadRequest> load;
    for (uint32_t i = 0; i < 6; ++i) load.push_back({.prompt = tokens(16, i), .max_tokens = 90});
    const auto answers = run_load(*serving, load);
    EXPECT_GT(serving->stats().preemptions, 0);
    EXPECT_EQ(answers[0].result.preemptions, 0) << "nobody takes pages from the oldest";
    const auto roomy_cache = model_->cache(format, 6, false);
    const auto roomy = run_load(*scheduler(*roomy_cache, 6), load);
    for (size_t i = 0; i < load.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, roomy[i].tokens) << format << " " << i;
      EXPECT_EQ(answers[i].result.reason, FinishReason::kLength);
    }
    expect_no_pages(*cache);
  }
}

TEST_F(SchedulerTest, RepeatsAnAnswerAsItWasDecodedAfterPreemption) {
  // Exact edges: an answer that were read again as a prompt would see other bytes.
  const auto cache = model_->cache("nvfp4", 4, false, 640);
  const auto serving = scheduler(*cache, 4);
  std::vector<LoadRequest> load;
  for (uint32_t i = 0; i < 4; ++i)
    load.push_back({.prompt = tokens(200 + 40 * static_cast<int32_t>(i), i), .max_tokens = 120});
  const auto answers = run_load(*serving, load);
  EXPECT_GT(serving->stats().preemptions, 0);
  const auto roomy_cache = model_->cache("nvfp4", 4, false);
  const auto roomy = run_load(*scheduler(*roomy_cache, 4), load);
  for (size_t i = 0; i < load.size(); ++i) EXPECT_EQ(answers[i].tokens, roomy[i].tokens) << i;
  expect_no_pages(*cache);
}

TEST_F(SchedulerTest, LetsShortRequestsPassOneThatFindsNoRoom) {
  const auto cache = model_->cache("bf16", 3, false, 320);
  const auto serving = scheduler(*cache, 3);
  const std::vector<LoadRequest> load = {{.prompt = tokens(150, 1), .max_tokens = 100},
                                         {.prompt = tokens(250, 2), .max_tokens = 4, .arrives = 1},
                                         {.prompt = tokens(10, 3), .max_tokens = 4, .arrives = 2}};
  const auto answers = run_load(*serving, load);
  EXPECT_LT(answers[2].result.queue_seconds, answers[1].result.queue_seconds / 2);
}

TEST_F(SchedulerTest, CancelsWaitingAndRunningRequests) {
  const auto cache = model_->cache("bf16", 1, false);
  const auto serving = scheduler(*cache, 1);
  const std::vector<LoadRequest> load = {{.prompt = tokens(20, 1), .max_tokens = 50, .cancel_after = 5},
                                         {.prompt = tokens(20, 2), .max_tokens = 5}};
  const auto answers = run_load(*serving, load, [&](Scheduler& s) {
    if (s.stats().generated_tokens == 2) s.cancel(2);
  });
  EXPECT_EQ(answers[0].result.reason, FinishReason::kCancelled);
  EXPECT_EQ(answers[0].tokens.size(), 5u);
  EXPECT_EQ(answers[1].result.reason, FinishReason::kCancelled);
  EXPECT_TRUE(answers[1].tokens.empty());
  expect_no_pages(*cache);
}

TEST_F(SchedulerTest, TakesAOneTokenChunkOfAPromptForNoDecode) {
  // Chunks and prompts of every small length, alone and beside others: the phase decides, not the number of rows.
  const auto cache = model_->cache("nvfp4", 4, false);
  const auto whole_cache = model_->cache("nvfp4", 4, false);
  std::vector<LoadRequest> load;
  for (int32_t length = 1; length <= 12; ++length)
    load.push_back({.prompt = tokens(length, static_cast<uint32_t>(length)), .max_tokens = 6});
  for (const int32_t length : {60, 63, 64, 65, 68, 127, 128, 129, 132, 255, 256, 257, 260})
    load.push_back({.prompt = tokens(length, static_cast<uint32_t>(length)), .max_tokens = 6});
  const auto chunked = run_load(*scheduler(*cache, 4, 8), load);
  const auto whole = run_load(*scheduler(*whole_cache, 1, 256), load);
  for (size_t i = 0; i < load.size(); ++i) EXPECT_EQ(chunked[i].tokens, whole[i].tokens) << load[i].prompt.size();
}

TEST_F(SchedulerTest, ReportsLogprobsOfTheModelsDistribution) {
  const auto cache = model_->cache("bf16", 2, false);
  const auto serving = scheduler(*cache, 2);
  const std::vector<LoadRequest> load = {
      {.prompt = tokens(20, 1), .max_tokens = 6, .logprobs = 3},
      {.prompt = tokens(20, 1), .max_tokens = 6, .sampling = {.temperature = 2.0f, .seed = 3}, .logprobs = 0}};
  const auto answers = run_load(*serving, load);
  ASSERT_EQ(answers[0].logprobs.size(), 6u);
  ASSERT_EQ(answers[1].logprobs.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const TokenLogprobs& item = answers[0].logprobs[i];
    ASSERT_EQ(item.top.size(), 3u);
    EXPECT_EQ(item.chosen.token, answers[0].tokens[i]);
    EXPECT_EQ(item.top[0].token, item.chosen.token) << "greedy takes the most likely";
    EXPECT_GE(item.top[0].logprob, item.top[1].logprob);
    EXPECT_LE(item.top[0].logprob, 0.0f);
    EXPECT_EQ(answers[1].logprobs[i].chosen.token, answers[1].tokens[i]);
    EXPECT_TRUE(answers[1].logprobs[i].top.empty());
  }
}

TEST_F(SchedulerTest, FindsTheSamePromptInThePrefixCache) {
  for (const char* format : {"bf16", "e4m3", "nvfp4"}) {
    for (const int32_t length : {15, 16, 17, 255, 256, 257, 520}) {
      const auto cache = model_->cache(format, 2, true);
      const auto serving = scheduler(*cache, 2);
      const LoadRequest same{.prompt = tokens(length, 7), .max_tokens = 30};
      std::vector<std::vector<int32_t>> answers;
      int32_t reused = 0;
      for (int repeat = 0; repeat < 3; ++repeat) {
        const auto answer = run_load(*serving, {same})[0];
        answers.push_back(answer.tokens);
        reused = answer.result.reused_tokens;
      }
      EXPECT_EQ(answers[0], answers[1]) << format << length;
      EXPECT_EQ(answers[0], answers[2]) << format << length;
      EXPECT_EQ(reused, cache->has_exact_edges() ? (length - 1) / 256 * 256 : (length - 1) / 16 * 16)
          << format << length;
      expect_no_pages(*cache);
    }
  }
}

TEST_F(SchedulerTest, BalancesPagesUnderRandomCancelsAndPreemptions) {
  NgramDrafter drafter;
  testing::SchedulerModel threaded(3);
  int64_t preemptions = 0, cancelled = 0;
  for (uint32_t seed = 0; seed < testing::random_rounds(12); ++seed) {
    testing::SchedulerModel& model = seed % 5 == 4 ? threaded : *model_;
    const char* formats[] = {"bf16", "nvfp4", "nvfp4:edges=16,0", "e4m3"};
    const auto cache = model.cache(formats[seed % 4], 6, seed % 3 > 0, 480 + 16 * (seed % 5));
    Scheduler serving(
        model.runner(), *cache,
        {.max_sequences = 6, .step_tokens = 40, .drafter = seed % 2 == 0 ? &drafter : nullptr, .max_drafts = 3});
    int32_t step = 0;
    const auto answers = run_load(serving, testing::mixed_load(24, model_->vocabulary(), seed, 380), [&](Scheduler& s) {
      if (++step % 7 == 0) s.cancel(1 + testing::tiny_llama::mix(seed * 100 + static_cast<uint32_t>(step)) % 24);
      const EngineStats stats = s.stats();
      ASSERT_LE(stats.base_pages_used, stats.base_pages);
      ASSERT_LE(stats.exact_pages_used, stats.exact_pages);
    });
    for (const LoadAnswer& answer : answers) {
      EXPECT_NE(answer.result.reason, FinishReason::kError) << answer.result.status.to_string();
      cancelled += answer.result.reason == FinishReason::kCancelled ? 1 : 0;
    }
    preemptions += serving.stats().preemptions;
    expect_no_pages(*cache);
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(cancelled, 0);
}

}  // namespace
}  // namespace kvant::engine
