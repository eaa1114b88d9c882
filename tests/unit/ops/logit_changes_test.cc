#include "ops/logit_changes.h"

#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/core/thread_pool.h"
#include "ops/decoder_ops.h"
#include "unit/ops/test_inputs.h"

namespace kvant::ops {
namespace {

constexpr int32_t kVocabulary = 97;

std::vector<int32_t> tokens(int32_t count, uint32_t seed) {
  std::vector<int32_t> out;
  for (const float value : test::random_values(count, seed))
    out.push_back(static_cast<int32_t>((value + 1.0f) * 1000.0f) % kVocabulary);
  return out;
}

std::vector<SamplingParams> params() {
  const SamplingParams bias{.logit_bias = {{3, 1.5f}, {50, -INFINITY}, {5000, 2.0f}, {3, 0.25f}}};
  SamplingParams all{.repetition_penalty = 1.3f, .presence_penalty = 0.4f, .frequency_penalty = 0.15f, .seed = 5};
  all.logit_bias = bias.logit_bias;
  SamplingParams drawn = all;
  drawn.temperature = 0.9f;
  drawn.top_p = 0.95f;
  return {bias,
          {.repetition_penalty = 1.7f},
          {.presence_penalty = -0.5f},
          {.frequency_penalty = 0.7f},
          {.repetition_penalty = 0.6f, .frequency_penalty = -0.3f},
          all,
          drawn};
}

TEST(LogitChanges, DrawWhatTheSamplerDraws) {
  ThreadPool pool(1);
  const Stream stream = Stream::on_cpu(pool);
  const DeviceSampler device = DeviceSampler::create(1, stream).value();
  constexpr int64_t kPrompt = 30;
  for (const SamplingParams& given : params()) {
    LogitChanges changes(given);
    Sampler sampler(given);
    EXPECT_TRUE(changes.any());
    std::vector<int32_t> history = tokens(kPrompt, 1);
    for (uint32_t step = 0; step < 60; ++step) {
      const std::vector<float> logits = test::random_values(kVocabulary, 100 + step);
      std::vector<float> on_host = logits, in_place = logits;
      const int32_t want = sampler.sample(on_host, {.tokens = history, .prompt_tokens = kPrompt}, step);

      changes.append(std::span(history).subspan(static_cast<size_t>(changes.num_tokens())), kPrompt);
      Draw draw = draw_of(given, step, 4);
      draw.num_changes = static_cast<int32_t>(changes.list().size());
      int32_t got = -1;
      DrawnLogprobs logprobs;
      const Status status = device.run({.logits = in_place.data(),
                                        .num_rows = 1,
                                        .vocabulary = kVocabulary,
                                        .draws = &draw,
                                        .out = &got,
                                        .changes = changes.list().data(),
                                        .logprobs = &logprobs},
                                       stream);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_EQ(got, want) << "step " << step;
      ASSERT_EQ(std::memcmp(in_place.data(), on_host.data(), in_place.size() * sizeof(float)), 0) << "step " << step;

      std::vector<float> all(logits.size());
      log_softmax(logits, all);
      const std::vector<int32_t> best = most_likely(all, 4);
      EXPECT_EQ(logprobs.drawn, all[static_cast<size_t>(want)]);
      for (size_t i = 0; i < best.size(); ++i) {
        EXPECT_EQ(logprobs.tokens[i], best[i]);
        EXPECT_EQ(logprobs.logprobs[i], all[static_cast<size_t>(best[i])]);
      }
      history.push_back(want);
    }
  }
}

TEST(LogitChanges, KnowTheListAfterDrafts) {
  const auto same = [](std::span<const LogitChange> a, std::span<const LogitChange> b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].token, b[i].token);
      EXPECT_EQ(a[i].bias, b[i].bias);
      EXPECT_EQ(a[i].occurrences, b[i].occurrences);
    }
  };
  for (const SamplingParams& given : params()) {
    const std::vector<int32_t> history = tokens(20, 7);
    // Known ones, a biased one, new ones, and each of them twice.
    const std::vector<int32_t> drafts = {history[4], 3, 95, history[4], 95, 3, 96};
    LogitChanges changes(given);
    changes.append(history, 12);
    for (size_t count = 0; count <= drafts.size(); ++count) {
      std::vector<LogitChange> list(2);
      changes.list_after(std::span(drafts).first(count), list);
      LogitChanges after(given);
      after.append(history, 12);
      after.append(std::span(drafts).first(count), 12);
      same(std::span(list).subspan(2), after.list());
    }
  }
}

TEST(LogitChanges, AreNoneWithoutBiasAndPenalties) {
  LogitChanges changes({.temperature = 0.7f, .top_p = 0.9f});
  changes.append(tokens(10, 1), 4);
  EXPECT_FALSE(changes.any());
  EXPECT_TRUE(changes.list().empty());
  EXPECT_EQ(changes.num_tokens(), 10);
}

}  // namespace
}  // namespace kvant::ops
