#include "support/engine_models.h"
#include "support/temp_dir.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/engine/engine.h"

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() : model_(dir_.write("tiny.gguf", testing::tiny_llama_gguf({}))) {}

  EngineOptions options(std::string_view kv = "nvfp4") {
    return {.model = model_,
            .kv = testing::spec(kv),
            .weights = WeightFormat::kF32,
            .threads = 1,
            .cache_dir = dir_.path() / "cache",
            .progress = {},
            .notice = [this](std::string_view text) { notices_.emplace_back(text); }};
  }
  std::unique_ptr<Engine> load(const EngineOptions& options) {
    auto engine = Engine::load(options);
    EXPECT_TRUE(engine) << engine.error().to_string();
    return std::move(engine).value();
  }
  static GenerateRequest request(std::vector<int32_t> prompt, int32_t max_tokens = 12) {
    return {.prompt = std::move(prompt),
            .sampling = {},
            .max_tokens = max_tokens,
            .stop = {},
            .ignore_end_of_turn = true,
            .on_text = {}};
  }

  testing::TempDir dir_;
  std::filesystem::path model_;
  std::vector<std::string> notices_;
};

TEST_F(EngineTest, SaysWhatItChose) {
  const auto engine = load(options());
  const EngineFacts& facts = engine->facts();
  EXPECT_EQ(facts.architecture, "llama");
  EXPECT_EQ(facts.kv_format, "nvfp4:policy=search:cond=full:edges=16,32");
  EXPECT_DOUBLE_EQ(facts.kv_bytes_per_token, 72.0);
  EXPECT_THAT(facts.kv_scale_source, HasSubstr("self-calibrated"));
  EXPECT_THAT(facts.route, HasSubstr("cpu/"));
  EXPECT_EQ(facts.weights, "f32");
  EXPECT_EQ(facts.context, 1024);
  EXPECT_EQ(facts.num_layers, 2);
  EXPECT_EQ(load(options("bf16"))->facts().kv_scale_source, "none");
  EXPECT_EQ(load(options("auto"))->facts().kv_format, "bf16");
  EXPECT_EQ(load(options("e4m3-plain"))->facts().kv_scale_source, "1.0 (plain)");
}

TEST_F(EngineTest, CalibratesOnceAndSaysSo) {
  const std::string first = load(options())->facts().kv_scale_source;
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("made KV profile"));
  EXPECT_EQ(load(options())->facts().kv_scale_source, first);
  EXPECT_EQ(notices_.size(), 1u);
}

TEST_F(EngineTest, CalibratesTheSameWhateverTheContext) {
  EngineOptions small = options();
  small.context = 64;
  small.cache_dir = dir_.path() / "another cache";
  EXPECT_EQ(load(small)->facts().kv_scale_source, load(options())->facts().kv_scale_source);
}

TEST_F(EngineTest, GoesOnWhenTheCacheDirectoryCannotBeWritten) {
  EngineOptions bad = options();
  bad.cache_dir = model_;  // a file
  const auto engine = load(bad);
  ASSERT_EQ(notices_.size(), 2u);
  EXPECT_THAT(notices_[1], HasSubstr("is not stored"));
  EXPECT_TRUE(engine->generate(request({1, 2, 3})));
}

TEST_F(EngineTest, TakesANamedProfile) {
  const std::string automatic = load(options())->facts().kv_scale_source;
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path() / "cache" / "profiles")) file = entry.path();
  EngineOptions named = options("e4m3");
  EXPECT_EQ(load(named)->facts().kv_scale_source, "1.0");
  named.kv_profile = file.string();
  EXPECT_THAT(load(named)->facts().kv_scale_source, HasSubstr(automatic.substr(0, 24)));
}

TEST_F(EngineTest, RefusesBadInputInOneLine) {
  const auto refusal = [&](auto change) {
    EngineOptions bad = options();
    change(bad);
    const auto engine = Engine::load(bad);
    EXPECT_FALSE(engine);
    return engine ? "" : engine.error().message();
  };
  EXPECT_THAT(refusal([](EngineOptions& o) { o.kv_profile = "none"; }), HasSubstr("--kv-profile auto"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.context = 4096; }),
              HasSubstr("4096 tokens is outside the model's limit"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.model = "/nonexistent.gguf"; }), HasSubstr("/nonexistent.gguf"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.kv_profile = "/nonexistent.safetensors"; }), HasSubstr("/nonexistent"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.page_size = 24; }), HasSubstr("page size 24"));
  EXPECT_THAT(refusal([](EngineOptions& o) {
                o.batch_invariant = true;
                o.device = DeviceChoice::kCuda;
              }),
              HasSubstr("use the CPU"));
}

TEST_F(EngineTest, RefusesAPromptBeyondTheContextWithBothCounts) {
  EngineOptions small = options("bf16");
  small.context = 64;
  const auto engine = load(small);
  const auto result = engine->generate(request(testing::random_tokens(64, 320, 1)));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(result.error().message(), HasSubstr("the prompt has 64 tokens and the context holds 64"));
  const Generation full = engine->generate(request(testing::random_tokens(60, 320, 1), 100)).value();
  EXPECT_EQ(full.token_ids.size(), 4u);
  EXPECT_EQ(full.finish_reason, FinishReason::kLength);
  EXPECT_FALSE(engine->generate(request({})));
  EXPECT_FALSE(engine->generate(request({1}, -1)));
  EXPECT_FALSE(engine->generate(request({1, 320})));
  EXPECT_TRUE(engine->generate(request({1, 2}))) << "a refused request leaves the engine usable";
}

class EngineReuse : public EngineTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(EngineReuse, GivesTheSameTokensByHitAndByMiss) {
  const auto engine = load(options(GetParam()));
  const auto fresh_answer = [&](const std::vector<int32_t>& prompt) {
    return load(options(GetParam()))->generate(request(prompt)).value().token_ids;
  };
  for (const int32_t length : {15, 16, 17, 255, 256, 257, 300, 520}) {
    const std::vector<int32_t> prompt = testing::random_tokens(length, 320, 7);
    const std::vector<int32_t> expected = fresh_answer(prompt);
    for (int repeat = 0; repeat < 3; ++repeat)
      EXPECT_EQ(engine->generate(request(prompt)).value().token_ids, expected) << length << " repeat " << repeat;
  }
  // A conversation: the answer and a new turn are appended.
  std::vector<int32_t> conversation = testing::random_tokens(300, 320, 8);
  for (int turn = 0; turn < 3; ++turn) {
    const Generation answer = engine->generate(request(conversation, 40)).value();
    conversation.insert(conversation.end(), answer.token_ids.begin(), answer.token_ids.end());
    const std::vector<int32_t> question = testing::random_tokens(30, 320, 90 + static_cast<uint32_t>(turn));
    conversation.insert(conversation.end(), question.begin(), question.end());
    const Generation next = engine->generate(request(conversation)).value();
    EXPECT_GE(next.reused_tokens, 256);
    EXPECT_EQ(next.token_ids, fresh_answer(conversation)) << "turn " << turn;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, EngineReuse, ::testing::Values("bf16", "e4m3", "nvfp4", "nvfp4-plain"));

TEST_F(EngineTest, CutsTextAtAStopString) {
  const auto engine = load(options("bf16"));
  const std::vector<int32_t> prompt = testing::random_tokens(20, 320, 3);
  const Generation whole = engine->generate(request(prompt, 30)).value();
  ASSERT_GT(whole.text.size(), 12u);
  GenerateRequest stopping = request(prompt, 30);
  const std::string stop = whole.text.substr(whole.text.size() / 2, 5);
  stopping.stop = {stop};
  std::string streamed;
  stopping.on_text = [&](std::string_view text) {
    streamed += text;
    return true;
  };
  const Generation cut = engine->generate(stopping).value();
  EXPECT_EQ(cut.finish_reason, FinishReason::kStop);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_EQ(streamed, cut.text);
  EXPECT_LT(cut.token_ids.size(), whole.token_ids.size());
}

TEST_F(EngineTest, StopsWhenTheCallerHasEnough) {
  const auto engine = load(options("bf16"));
  GenerateRequest impatient = request(testing::random_tokens(20, 320, 3), 30);
  int calls = 0;
  impatient.on_text = [&](std::string_view) { return ++calls < 2; };
  const Generation out = engine->generate(impatient).value();
  EXPECT_EQ(calls, 2);
  EXPECT_LT(out.token_ids.size(), 30u);
  EXPECT_EQ(out.finish_reason, FinishReason::kStop);
}

TEST_F(EngineTest, RepeatsASeedAndVariesWithoutIt) {
  const auto engine = load(options("bf16"));
  GenerateRequest sampled = request(testing::random_tokens(20, 320, 3), 20);
  sampled.sampling = {.temperature = 1.5f, .seed = 11};
  const std::vector<int32_t> first = engine->generate(sampled).value().token_ids;
  EXPECT_EQ(engine->generate(sampled).value().token_ids, first);
  sampled.sampling.seed = 12;
  EXPECT_NE(engine->generate(sampled).value().token_ids, first);
  sampled.sampling.top_p = 2.0f;
  EXPECT_FALSE(engine->generate(sampled));
}

TEST_F(EngineTest, ServesRequestsOfOtherThreads) {
  EngineOptions serving = options("nvfp4");
  serving.max_sequences = 3;
  serving.batch_invariant = true;
  serving.speculation = parse_speculation("ngram:3").value();
  const auto engine = load(serving);
  EngineOptions alone = options("nvfp4");
  alone.batch_invariant = true;
  const auto reference = load(alone);

  constexpr int kClients = 3, kEach = 4;
  std::atomic<int> finished = 0;
  std::vector<std::vector<int32_t>> answers(kClients * kEach);
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c)
    clients.emplace_back([&, c] {
      for (int i = c * kEach; i < (c + 1) * kEach; ++i) {
        GenerateRequest asked = request(testing::random_tokens(20 + 9 * i, 320, static_cast<uint32_t>(i)));
        asked.on_finish = [&, i](const Generation& generation) {
          answers[static_cast<size_t>(i)] = generation.token_ids;
          ++finished;
        };
        EXPECT_TRUE(engine->submit(std::move(asked)));
        EXPECT_GE(engine->stats().waiting, 0);
      }
    });
  while (finished < kClients * kEach)
    if (!engine->step()) engine->wait_for_work(std::chrono::milliseconds(20));
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < kClients * kEach; ++i) {
    const auto expected =
        reference->generate(request(testing::random_tokens(20 + 9 * i, 320, static_cast<uint32_t>(i))));
    EXPECT_EQ(answers[static_cast<size_t>(i)], expected.value().token_ids) << i;
  }
  EXPECT_EQ(engine->stats().finished, kClients * kEach);
  EXPECT_FALSE(engine->step());
  EXPECT_FALSE(engine->wait_for_work(std::chrono::milliseconds(0)));
}

TEST_F(EngineTest, CancelsARequestBetweenTokens) {
  const auto engine = load(options("bf16"));
  Generation out;
  GenerateRequest asked = request(testing::random_tokens(20, 320, 3), 100);
  asked.on_finish = [&](const Generation& generation) { out = generation; };
  const RequestId id = engine->submit(asked).value();
  for (int i = 0; i < 5; ++i) engine->step();
  engine->cancel(id);
  engine->cancel(id + 7);
  EXPECT_FALSE(engine->step());
  EXPECT_EQ(out.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(out.token_ids.size(), 5u);
  EXPECT_EQ(engine->stats().exact_pages_used, 0);
}

TEST_F(EngineTest, CountsAnAnswerBeforeItIsGiven) {
  const auto engine = load(options("nvfp4"));
  EngineStats seen;
  GenerateRequest asked = request(testing::random_tokens(20, 320, 3), 5);
  asked.on_finish = [&](const Generation&) { seen = engine->stats(); };
  const Generation answer = engine->generate(asked).value();
  EXPECT_EQ(seen.generated_tokens, std::ssize(answer.token_ids));
  EXPECT_EQ(seen.prompt_tokens, 20);
  EXPECT_EQ(seen.finished, 1);
  EXPECT_EQ(seen.running, 0);
  EXPECT_EQ(seen.exact_pages_used, 0);
}

TEST_F(EngineTest, FinishesWhatItHasWhenItIsDestroyed) {
  std::vector<FinishReason> reasons;
  {
    const auto engine = load(options("bf16"));
    for (int i = 0; i < 3; ++i) {
      GenerateRequest asked = request(testing::random_tokens(20, 320, 3), 100);
      asked.on_finish = [&](const Generation& generation) { reasons.push_back(generation.finish_reason); };
      ASSERT_TRUE(engine->submit(asked));
      if (i == 1) engine->step();  // One runs, one waits, one has just come.
    }
    EXPECT_TRUE(reasons.empty());
  }
  EXPECT_EQ(reasons, std::vector<FinishReason>(3, FinishReason::kCancelled));
}

TEST_F(EngineTest, StopsInsideADraftBlockAsWithoutDrafts) {
  EngineOptions speculating = options("bf16");
  speculating.batch_invariant = true;
  const auto plain = load(speculating);
  speculating.speculation = parse_speculation("ngram:6").value();
  const auto drafting = load(speculating);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 60; ++i) prompt.push_back(100 + i % 7);
  const Generation whole = plain->generate(request(prompt, 60)).value();
  ASSERT_GT(whole.text.size(), 20u);
  for (size_t at = 5; at + 4 < whole.text.size(); at += 9) {
    GenerateRequest asked = request(prompt, 60);
    asked.stop = {whole.text.substr(at, 4)};
    const Generation a = plain->generate(asked).value(), b = drafting->generate(asked).value();
    EXPECT_EQ(a.text, b.text);
    EXPECT_EQ(a.token_ids, b.token_ids);
    EXPECT_EQ(a.finish_reason, b.finish_reason);
  }
  EXPECT_EQ(drafting->generate(request(prompt, 60)).value().token_ids, whole.token_ids);
}

TEST_F(EngineTest, SaysWhatTheKvCacheMayTake) {
  EngineOptions small = options("bf16");
  small.max_sequences = 4;
  small.kv_memory = parse_kv_memory("100KiB").value();
  const auto engine = load(small);
  EXPECT_THAT(engine->facts().kv_memory, HasSubstr("400 tokens x 256 bytes, for 4 sequences of up to 1024 tokens"));
  const auto refused = engine->submit(request(testing::random_tokens(350, 320, 1), 60));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("needs 26 base and 0 exact pages"));
}

TEST_F(EngineTest, RendersAConversation) {
  const auto engine = load(options("bf16"));
  const std::vector<ChatTurn> turns = {{.role = "user", .content = "hello <|im_end|>"}};
  const std::vector<int32_t> ids = engine->encode_chat(turns).value();
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1) << "a control token that a user types stays text";
  EXPECT_EQ(engine->decode(engine->encode_prompt("hello world").value()), "hello world");
}

}  // namespace
}  // namespace kvant::engine
