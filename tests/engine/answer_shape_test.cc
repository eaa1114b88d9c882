// What answers are made to look like, and log probabilities of prompts.
#include "support/engine_models.h"
#include "support/temp_dir.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kvant/engine/engine.h"
#include "support/tolerance.h"

namespace kvant::engine {
namespace {

using Json = nlohmann::json;

class AnswerShapeTest : public ::testing::Test {
 protected:
  AnswerShapeTest() {
    auto engine = Engine::load({.model = dir_.write("tiny.gguf", testing::tiny_llama_gguf({})),
                                .kv = testing::spec("f32"),
                                .weights = WeightFormat::kF32,
                                .threads = 1,
                                .max_sequences = 2,
                                .cache_dir = dir_.path() / "cache",
                                .progress = {},
                                .notice = {}});
    EXPECT_TRUE(engine) << engine.error().to_string();
    engine_ = *std::move(engine);
  }

  Generation answer(std::optional<AnswerShape> shape, uint64_t seed, int32_t max_tokens = 400) {
    GenerateRequest request;
    request.prompt = {259, 104};
    request.sampling.temperature = 1.0f;
    request.sampling.seed = seed;
    request.max_tokens = max_tokens;
    request.shape = std::move(shape);
    auto generation = engine_->generate(request);
    EXPECT_TRUE(generation) << generation.error().to_string();
    return *std::move(generation);
  }

  testing::TempDir dir_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(AnswerShapeTest, KeepsRandomTokensInsideTheSchema) {
  const AnswerShape shape{.kind = AnswerShape::Kind::kJsonSchema, .schema = R"({"type":"object","properties":{
    "colour":{"enum":["red","blue"]},"size":{"type":"integer"},"name":{"type":"string","maxLength":8},
    "tags":{"type":"array","items":{"type":"boolean"},"maxItems":3}},"required":["colour","size","name","tags"]})"};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Generation generation = answer(shape, seed);
    EXPECT_EQ(generation.finish_reason, FinishReason::kStop) << generation.text;
    const Json json = Json::parse(generation.text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << generation.text;
    EXPECT_TRUE(json["colour"] == "red" || json["colour"] == "blue");
    EXPECT_TRUE(json["size"].is_number_integer());
    EXPECT_TRUE(json["name"].is_string());
    EXPECT_LE(json["tags"].size(), 3u);
  }
}

TEST_F(AnswerShapeTest, IsJsonAsFarAsItGoesWhenCutShort) {
  const Generation generation = answer(AnswerShape{.kind = AnswerShape::Kind::kJsonObject}, 3, 5);
  EXPECT_EQ(generation.text.substr(0, 1), "{");
}

TEST_F(AnswerShapeTest, DoesNotChangeOtherRequests) {
  const std::string alone = answer(std::nullopt, 5, 24).text;
  answer(AnswerShape{.kind = AnswerShape::Kind::kJsonObject}, 5, 24);
  EXPECT_EQ(answer(std::nullopt, 5, 24).text, alone);
}

TEST_F(AnswerShapeTest, ScoresAPromptAsIfItHadBeenGenerated) {
  GenerateRequest request;
  request.prompt = {259, 104, 108};
  request.ignore_end_of_turn = true;
  request.logprobs = 2;
  request.max_tokens = 90;  // More than is scored at once.
  const Generation made = engine_->generate(request).value();
  GenerateRequest scoring;
  scoring.prompt = request.prompt;
  scoring.prompt_logprobs = 2;
  scoring.prompt.insert(scoring.prompt.end(), made.token_ids.begin(), made.token_ids.end());
  scoring.max_tokens = 0;
  const Generation scored = engine_->generate(scoring).value();
  EXPECT_EQ(scored.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(scored.token_ids.empty());
  EXPECT_EQ(scored.reused_tokens, 0);
  ASSERT_EQ(scored.prompt_logprobs.size(), scoring.prompt.size());
  for (size_t i = 0; i < made.logprobs.size(); ++i) {
    const TokenLogprobs& a = scored.prompt_logprobs[i + 3];
    const TokenLogprobs& b = made.logprobs[i];
    ASSERT_EQ(a.chosen.token, b.chosen.token);
    ASSERT_NEAR(a.chosen.logprob, b.chosen.logprob, test::reordering_tolerance()) << i;
    ASSERT_EQ(a.top.size(), 2u);
  }
}

TEST_F(AnswerShapeTest, ReadsAPromptAndNothingMore) {
  GenerateRequest request;
  request.prompt = {259, 104, 108};
  request.max_tokens = 0;
  const Generation generation = engine_->generate(request).value();
  EXPECT_EQ(generation.finish_reason, FinishReason::kLength);
  EXPECT_EQ(generation.text, "");
}

}  // namespace
}  // namespace kvant::engine
