#include "support/engine_models.h"
#include "support/tolerance.h"

#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "engine/calibration/calibrate.h"

namespace kvant::engine {
namespace {

using testing::TinyModel;

class RunnerTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<TinyModel>();
    const std::vector<int32_t> text = testing::random_tokens(512, model_->vocabulary(), 9);
    profile_ = std::make_shared<const KvProfile>(
        calibrate(model_->runner(), text, kCalibrationContext, model_->hash(), {}).value());
  }
  static void TearDownTestSuite() {
    model_.reset();
    profile_.reset();
  }

  /// Logits of the last prompt token, the prompt handed over in chunks.
  static std::vector<float> chunked(KvCacheSet& cache, std::span<const int32_t> tokens, size_t chunk) {
    const SequenceId sequence = cache.add_sequence().value();
    std::vector<float> logits;
    for (size_t done = 0; done < tokens.size(); done += chunk) {
      const auto part = tokens.subspan(done, std::min(chunk, tokens.size() - done));
      logits = model_->run(cache, sequence, part, done == 0 ? RowPhase::kPrefill : RowPhase::kExtend);
    }
    cache.remove_sequence(sequence);
    return logits;
  }

  static inline std::unique_ptr<TinyModel> model_;
  static inline std::shared_ptr<const KvProfile> profile_;
};

TEST_P(RunnerTest, GivesTheSameForAnyChunking) {
  const auto cache = model_->cache(GetParam(), profile_);
  const std::vector<int32_t> tokens = testing::random_tokens(300, model_->vocabulary(), 5);
  const std::vector<float> whole = chunked(*cache, tokens, tokens.size());
  for (const size_t chunk : {1, 17, 64, 100, 128, 256})
    EXPECT_LT(testing::largest_difference(whole, chunked(*cache, tokens, chunk)), test::reordering_tolerance())
        << "chunk " << chunk;
}

TEST_P(RunnerTest, GivesTheSameAloneAndInABatch) {
  constexpr int kSequences = 3;
  const auto vocabulary = static_cast<size_t>(model_->vocabulary());
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> alone;
  const auto cache = model_->cache(GetParam(), profile_);
  for (int i = 0; i < kSequences; ++i) {
    prompts.push_back(testing::random_tokens(40 + 130 * i, model_->vocabulary(), 20 + static_cast<uint32_t>(i)));
    alone.push_back(model_->run_decoding(*cache, prompts.back(), prompts.back().size() - 8));
  }
  std::vector<SequenceId> ids;
  std::vector<float> logits(kSequences * vocabulary);
  const auto forward = [&](size_t begin_from_end, size_t count, RowPhase phase) {
    std::vector<BatchRow> rows;
    for (size_t i = 0; i < kSequences; ++i) {
      const size_t begin = begin_from_end == 0 ? 0 : prompts[i].size() - begin_from_end;
      rows.push_back({.cache = cache.get(),
                      .sequence = ids[i],
                      .tokens = std::span(prompts[i]).subspan(begin, count == 0 ? prompts[i].size() - 8 : count),
                      .phase = phase});
    }
    ASSERT_TRUE(model_->runner().forward(rows, logits.data()).ok());
  };
  const auto check = [&](size_t step) {
    for (size_t i = 0; i < kSequences; ++i)
      EXPECT_LT(testing::largest_difference(std::span(logits).subspan(i * vocabulary, vocabulary),
                                            std::span(alone[i]).subspan(step * vocabulary, vocabulary)),
                test::reordering_tolerance())
          << "sequence " << i << " step " << step;
  };
  for (int i = 0; i < kSequences; ++i) ids.push_back(cache->add_sequence().value());
  forward(0, 0, RowPhase::kPrefill);
  check(0);
  for (size_t step = 1; step <= 8; ++step) {
    forward(9 - step, 1, RowPhase::kDecode);
    check(step);
  }
}

TEST_P(RunnerTest, GivesAllPagesBack) {
  const auto cache = model_->cache(GetParam(), profile_);
  const SequenceId first = cache->add_sequence().value();
  const SequenceId second = cache->add_sequence().value();
  model_->run(*cache, first, testing::random_tokens(520, model_->vocabulary(), 1), RowPhase::kPrefill);
  model_->run(*cache, second, testing::random_tokens(7, model_->vocabulary(), 2), RowPhase::kPrefill);
  for (int32_t i = 0; i < 40; ++i)
    model_->run(*cache, first, testing::random_tokens(1, model_->vocabulary(), 1), RowPhase::kDecode);
  EXPECT_GT(cache->base_pages_used() + cache->exact_pages_used(), 0);
  cache->remove_sequence(first);
  cache->remove_sequence(second);
  EXPECT_EQ(cache->base_pages_used(), 0);
  EXPECT_EQ(cache->exact_pages_used(), 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, RunnerTest,
                         ::testing::Values("f32", "bf16", "e4m3", "e4m3-plain", "nvfp4", "nvfp4-plain",
                                           "nvfp4:edges=0,32", "nvfp4:edges=40,0"));

TEST_F(RunnerTest, RollsBackDrafts) {
  const auto cache = model_->cache("nvfp4", profile_);
  const std::vector<int32_t> prompt = testing::random_tokens(100, model_->vocabulary(), 41);
  const std::vector<int32_t> step = testing::random_tokens(1, model_->vocabulary(), 42);
  std::vector<int32_t> block = step;
  for (const int32_t draft : testing::random_tokens(3, model_->vocabulary(), 43)) block.push_back(draft);
  const SequenceId sequence = cache->add_sequence().value();
  model_->run(*cache, sequence, prompt, RowPhase::kPrefill);
  for (int32_t round = 0; round < 40; ++round) {
    const int32_t length = cache->length(sequence);
    model_->run(*cache, sequence, block, RowPhase::kDecode);
    cache->rollback(sequence, length + 1);
  }
  const SequenceId plain = cache->add_sequence().value();
  model_->run(*cache, plain, prompt, RowPhase::kPrefill);
  for (int32_t round = 0; round < 40; ++round) model_->run(*cache, plain, step, RowPhase::kDecode);
  EXPECT_EQ(cache->length(sequence), cache->length(plain));
  EXPECT_LT(testing::largest_difference(model_->run(*cache, sequence, step, RowPhase::kDecode),
                                        model_->run(*cache, plain, step, RowPhase::kDecode)),
            test::reordering_tolerance());
}

TEST_F(RunnerTest, RunsSeveralCacheSetsInOneBatch) {
  const auto vocabulary = static_cast<size_t>(model_->vocabulary());
  const char* specs[] = {"f32", "bf16", "nvfp4", "e4m3-plain"};
  const std::vector<int32_t> tokens = testing::random_tokens(60, model_->vocabulary(), 51);
  std::vector<std::unique_ptr<KvCacheSet>> caches;
  std::vector<SequenceId> ids;
  std::vector<float> logits(std::size(specs) * vocabulary);
  for (const char* text : specs) {
    caches.push_back(model_->cache(text, profile_));
    ids.push_back(caches.back()->add_sequence().value());
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<BatchRow> rows;
    for (size_t c = 0; c < caches.size(); ++c)
      rows.push_back({.cache = caches[c].get(), .sequence = ids[c], .tokens = std::span(tokens).subspan(i, 1)});
    ASSERT_TRUE(model_->runner().forward(rows, logits.data()).ok());
  }
  for (size_t c = 0; c < caches.size(); ++c) {
    const SequenceId alone = caches[c]->add_sequence().value();
    std::vector<float> expected;
    for (size_t i = 0; i < tokens.size(); ++i)
      expected = model_->run(*caches[c], alone, std::span(tokens).subspan(i, 1), RowPhase::kDecode);
    EXPECT_LT(testing::largest_difference(std::span(logits).subspan(c * vocabulary, vocabulary), expected),
              test::reordering_tolerance())
        << specs[c];
  }
}

TEST_F(RunnerTest, RefusesWhatItCannotRun) {
  const auto cache = model_->cache("bf16", nullptr, 1, 16);
  const SequenceId sequence = cache->add_sequence().value();
  std::vector<float> logits(static_cast<size_t>(model_->vocabulary()));
  const auto forward = [&](std::vector<int32_t> tokens) {
    const BatchRow row{.cache = cache.get(), .sequence = sequence, .tokens = tokens, .phase = RowPhase::kPrefill};
    return model_->runner().forward({&row, 1}, logits.data());
  };
  EXPECT_EQ(forward(testing::random_tokens(17, model_->vocabulary(), 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(forward({1, model_->vocabulary()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(forward({-1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->length(sequence), 0);
  EXPECT_TRUE(forward({1}).ok());
  EXPECT_FALSE(cache->add_sequence());
}

}  // namespace
}  // namespace kvant::engine
