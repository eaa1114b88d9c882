#include "support/engine_models.h"
#include "support/tolerance.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

using testing::LlamaGolden;

class Golden : public ::testing::TestWithParam<LlamaGolden> {};

void check_row(const LlamaGolden& golden, int32_t position, std::span<const float> logits) {
  const LlamaGolden::Row& row = golden.rows[static_cast<size_t>(position)];
  const double tolerance = test::golden_logit_tolerance();
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(std::log(sum), row.log_sum_exp, tolerance) << "position " << position;
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), row.argmax) << "position " << position;
  for (int32_t i = 0; i < std::ssize(row.samples); ++i)
    EXPECT_NEAR(logits[static_cast<size_t>(golden.sample_id(position, i))], row.samples[static_cast<size_t>(i)],
                tolerance)
        << "position " << position << " id " << golden.sample_id(position, i);
}

TEST_P(Golden, MatchesTransformersInPrefillAndDecode) {
  const LlamaGolden& golden = GetParam();
  testing::TinyModel model(golden.config, 2);
  const auto cache = model.cache("f32");
  const SequenceId sequence = cache->add_sequence().value();
  const std::span<const int32_t> tokens(golden.tokens);
  const auto prompt = static_cast<size_t>(golden.prompt_tokens);
  ASSERT_GE(tokens.size(), prompt + 32);
  const auto vocabulary = static_cast<size_t>(golden.config.vocabulary);
  const std::vector<float> prefill =
      model.run(*cache, sequence, tokens.first(prompt), RowPhase::kPrefill, LogitsWanted::kAll);
  for (size_t i = 0; i < prompt; ++i)
    check_row(golden, static_cast<int32_t>(i), std::span(prefill).subspan(i * vocabulary, vocabulary));
  for (size_t i = prompt; i < tokens.size(); ++i)
    check_row(golden, static_cast<int32_t>(i), model.run(*cache, sequence, tokens.subspan(i, 1), RowPhase::kDecode));
}

INSTANTIATE_TEST_SUITE_P(TinyLlama, Golden, ::testing::ValuesIn(testing::read_llama_goldens()),
                         [](const auto& test) { return test.param.name; });

TEST(GoldenFile, HasModels) { EXPECT_GE(testing::read_llama_goldens().size(), 5u); }

}  // namespace
}  // namespace kvant::engine
