#include "engine/calibration/calibrate.h"
#include "support/engine_models.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

using testing::TinyLlamaConfig;
using testing::TinyModel;

/// Batch-invariant caches, so that hit and miss can be compared to the last bit.
class PrefixCacheTest : public ::testing::TestWithParam<const char*> {
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
  static std::unique_ptr<KvCacheSet> cache(std::string_view text, int64_t pool_tokens = 0) {
    return model_->runner()
        .create_cache({.spec = testing::spec(text),
                       .max_sequences = 4,
                       .max_tokens = 1024,
                       .pool_tokens = pool_tokens,
                       .prefix_cache = true,
                       .profile = profile_,
                       .batch_invariant = true})
        .value();
  }

  struct Outcome {
    int32_t reused = 0;
    std::vector<float> logits;
  };
  /// Reads a prompt from the cache as far as it is there, then in chunks.
  static Outcome read(KvCacheSet& cache, SequenceId sequence, std::span<const int32_t> tokens, size_t chunk = 256,
                      std::string_view salt = {}) {
    Outcome out{.reused = cache.reuse_prefix(sequence, tokens, salt), .logits = {}};
    for (auto done = static_cast<size_t>(out.reused); done < tokens.size();) {
      const size_t end = std::min(tokens.size(), (done / chunk + 1) * chunk);
      out.logits = model_->run(cache, sequence, tokens.subspan(done, end - done),
                               done == 0 ? RowPhase::kPrefill : RowPhase::kExtend);
      cache.publish_prefix(sequence, tokens, salt);
      done = end;
    }
    return out;
  }
  static std::vector<float> decode(KvCacheSet& cache, SequenceId sequence, int32_t steps) {
    std::vector<float> logits;
    for (int32_t i = 0; i < steps; ++i)
      logits =
          model_->run(cache, sequence, testing::random_tokens(1, model_->vocabulary(), 70 + static_cast<uint32_t>(i)),
                      RowPhase::kDecode);
    return logits;
  }
  static void expect_empty(KvCacheSet& cache) {
    cache.clear_prefixes();
    EXPECT_EQ(cache.num_prefix_blocks(), 0);
    EXPECT_EQ(cache.base_pages_used(), 0);
    EXPECT_EQ(cache.exact_pages_used(), 0);
  }

  static inline std::unique_ptr<TinyModel> model_;
  static inline std::shared_ptr<const KvProfile> profile_;
};

TEST_P(PrefixCacheTest, GivesTheSameBitsByHitAndByMiss) {
  const std::vector<int32_t> prompt = testing::random_tokens(600, model_->vocabulary(), 31);
  for (const int32_t common : {17, 256, 257, 300, 512, 560, 600}) {
    std::vector<int32_t> next(prompt.begin(), prompt.begin() + common);
    for (const int32_t token : testing::random_tokens(50, model_->vocabulary(), 32)) next.push_back(token);
    const auto warm = cache(GetParam());
    const SequenceId first = warm->add_sequence().value();
    read(*warm, first, prompt, 100);
    decode(*warm, first, 70);
    warm->remove_sequence(first);
    const SequenceId hit = warm->add_sequence().value();
    const Outcome after_hit = read(*warm, hit, next);
    EXPECT_EQ(after_hit.reused, warm->has_exact_edges() ? common / 256 * 256 : common / 16 * 16);

    const auto cold = cache(GetParam());
    const SequenceId miss = cold->add_sequence().value();
    EXPECT_EQ(after_hit.logits, read(*cold, miss, next).logits) << common;
    EXPECT_EQ(decode(*warm, hit, 60), decode(*cold, miss, 60)) << common;
    warm->remove_sequence(hit);
    expect_empty(*warm);
  }
}

TEST_P(PrefixCacheTest, SharesPagesBetweenRunningSequences) {
  const std::vector<int32_t> prompt = testing::random_tokens(520, model_->vocabulary(), 31);
  const auto shared = cache(GetParam());
  std::vector<SequenceId> ids;
  std::vector<std::vector<float>> logits;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(shared->add_sequence().value());
    read(*shared, ids.back(), prompt);
    const int64_t pages = shared->base_pages_used();
    if (i > 0) {
      EXPECT_LT(pages, (i + 1) * 34);
    }
  }
  for (const SequenceId id : ids) logits.push_back(decode(*shared, id, 80));
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_EQ(logits[0], logits[2]);
  for (const SequenceId id : ids) shared->remove_sequence(id);
  expect_empty(*shared);
}

INSTANTIATE_TEST_SUITE_P(Specs, PrefixCacheTest,
                         ::testing::Values("bf16", "e4m3", "nvfp4", "nvfp4-plain", "nvfp4:edges=0,32",
                                           "nvfp4:edges=40,0", "nvfp4:edges=0,17", "nvfp4:edges=300,300"));

TEST_F(PrefixCacheTest, KeepsSaltsApart) {
  const std::vector<int32_t> prompt = testing::random_tokens(100, model_->vocabulary(), 31);
  const auto salted = cache("bf16");
  const auto reused = [&](std::string_view salt) {
    const SequenceId id = salted->add_sequence().value();
    const int32_t tokens = read(*salted, id, prompt, 256, salt).reused;
    salted->remove_sequence(id);
    return tokens;
  };
  EXPECT_EQ(reused("a"), 0);
  EXPECT_EQ(reused("b"), 0);
  EXPECT_EQ(reused(""), 0);
  EXPECT_EQ(reused("a"), 96);
  EXPECT_EQ(reused("b"), 96);
}

TEST_F(PrefixCacheTest, LetsALongPromptThroughAFewExactPages) {
  TinyLlamaConfig config;
  config.context = 4096;
  TinyModel model(config);
  const auto long_cache = [&](bool prefix_cache) {
    return model.runner()
        .create_cache({.spec = testing::spec("e4m3:cond=none:edges=16,32"),
                       .max_sequences = 1,
                       .max_tokens = 4096,
                       .prefix_cache = prefix_cache,
                       .profile = nullptr,
                       .batch_invariant = true})
        .value();
  };
  // Twelve grid points, and exact pages for the tails of four.
  const std::vector<int32_t> prompt = testing::random_tokens(3300, model.vocabulary(), 5);
  const auto read_in = [&](KvCacheSet& cache) {
    Outcome out;
    const SequenceId id = cache.add_sequence().value();
    out.reused = cache.reuse_prefix(id, prompt, {});
    for (auto done = static_cast<size_t>(out.reused); done < prompt.size(); done += 256) {
      const size_t count = std::min<size_t>(256, prompt.size() - done);
      out.logits = model.run(cache, id, std::span(prompt).subspan(done, count),
                             done == 0 ? RowPhase::kPrefill : RowPhase::kExtend);
      cache.publish_prefix(id, prompt, {});
    }
    cache.remove_sequence(id);
    return out;
  };
  const auto cached = long_cache(true);
  const Outcome first = read_in(*cached);
  EXPECT_EQ(first.reused, 0);
  const Outcome second = read_in(*cached);
  EXPECT_EQ(second.reused, 3072) << "the newest grid points keep their tails";
  EXPECT_EQ(first.logits, second.logits);
  EXPECT_EQ(first.logits, read_in(*long_cache(false)).logits);
  expect_empty(*cached);
}

TEST_F(PrefixCacheTest, GivesUpTheLeastRecentlyUsedPrefixes) {
  // Pages for 20 blocks of 16.
  const auto small = cache("bf16", 320);
  const auto prompt = [&](uint32_t seed) { return testing::random_tokens(100, model_->vocabulary(), seed); };
  const auto reused = [&](uint32_t seed) {
    const SequenceId id = small->add_sequence().value();
    const int32_t tokens = read(*small, id, prompt(seed)).reused;
    small->remove_sequence(id);
    return tokens;
  };
  EXPECT_EQ(reused(1), 0);
  EXPECT_EQ(reused(2), 0);
  EXPECT_EQ(reused(3), 0);
  EXPECT_EQ(reused(1), 96);
  EXPECT_EQ(reused(4), 0) << "takes pages of prompt 2";
  EXPECT_EQ(reused(1), 96);
  EXPECT_LT(reused(2), 96);
  expect_empty(*small);
}

TEST_F(PrefixCacheTest, NeverTakesPagesOfRunningSequences) {
  const auto small = cache("bf16", 320);
  const SequenceId first = small->add_sequence().value();
  read(*small, first, testing::random_tokens(200, model_->vocabulary(), 1));
  const SequenceId second = small->add_sequence().value();
  const StepRow rows[] = {{.sequence = second, .num_tokens = 121, .phase = RowPhase::kPrefill}};
  EXPECT_FALSE(small->make_room(rows));
  const StepRow fewer[] = {{.sequence = second, .num_tokens = 112, .phase = RowPhase::kPrefill}};
  EXPECT_TRUE(small->make_room(fewer));
}

}  // namespace
}  // namespace kvant::engine
