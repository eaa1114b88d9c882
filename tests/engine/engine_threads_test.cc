// One engine under threads that submit, cancel, ask and give up at random. Of most use under the thread sanitizer.
#include "support/engine_models.h"
#include "support/random_rounds.h"
#include "support/temp_dir.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/engine/engine.h"

namespace kvant::engine {
namespace {

using testing::tiny_llama::mix;

constexpr uint32_t kClients = 4;
constexpr uint32_t kEach = 10;

/// What a client asks for; every kind of answer that the engine gives is among them.
GenerateRequest random_request(const Engine& engine, uint32_t seed) {
  GenerateRequest request;
  request.prompt = mix(seed) % 3 == 0
                       ? engine.encode_prompt("the same text again and again").value()
                       : testing::random_tokens(1 + static_cast<int32_t>(mix(seed + 1) % 150), 320, seed);
  request.max_tokens = 1 + static_cast<int32_t>(mix(seed + 2) % 30);
  request.ignore_end_of_turn = true;
  switch (mix(seed + 3) % 5) {
    case 0: request.sampling = {.temperature = 1.0f, .top_p = 0.9f, .seed = seed}; break;
    case 1:
      request.sampling = {.repetition_penalty = 1.2f, .frequency_penalty = 0.1f, .logit_bias = {{5, 2.0f}}};
      break;
    case 2: request.logprobs = 2; break;
    case 3: request.shape = AnswerShape{.kind = AnswerShape::Kind::kJsonObject, .schema = {}}; break;
    default: break;
  }
  return request;
}

TEST(EngineThreads, EndEveryRequestOfClientsThatCancelAtRandom) {
  testing::TempDir dir;
  const auto model = dir.write("tiny.gguf", testing::tiny_llama_gguf({}));
  const char* formats[] = {"bf16", "nvfp4", "e4m3"};
  for (uint32_t round = 0; round < testing::random_rounds(3); ++round) {
    auto loaded = Engine::load({.model = model,
                                .kv = testing::spec(formats[round % 3]),
                                .weights = round % 2 == 0 ? WeightFormat::kInt8 : WeightFormat::kF32,
                                .threads = 2,
                                .max_sequences = 5,
                                .kv_memory = parse_kv_memory("450t").value(),
                                .speculation = parse_speculation("ngram:3").value(),
                                .cache_dir = dir.path() / "cache",
                                .progress = {},
                                .notice = {}});
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    Engine& engine = **loaded;
    std::atomic<uint32_t> ended = 0;
    std::vector<std::thread> clients;
    for (uint32_t c = 0; c < kClients; ++c)
      clients.emplace_back([&, c] {
        for (uint32_t i = 0; i < kEach; ++i) {
          const uint32_t seed = (round * kClients + c) * kEach + i;
          GenerateRequest request = random_request(engine, seed);
          const auto asked = request.prompt;
          request.on_finish = [&](const Generation& generation) {
            EXPECT_NE(generation.finish_reason, FinishReason::kError) << generation.status.to_string();
            ++ended;
          };
          const Result<RequestId> id = engine.submit(std::move(request));
          if (!id) {
            ADD_FAILURE() << id.error().to_string();
            ++ended;
            continue;
          }
          static_cast<void>(engine.decode(asked));
          std::this_thread::yield();
          // Some at once, some while they run, some after their end.
          if (mix(seed + 9) % 3 == 0) engine.cancel(*id - mix(seed + 10) % 3);
          EXPECT_LE(engine.stats().running, 5);
        }
      });
    while (ended < kClients * kEach)
      if (!engine.step()) engine.wait_for_work(std::chrono::milliseconds(5));
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(ended, kClients * kEach);
    EXPECT_EQ(engine.stats().finished, kClients * kEach);
    EXPECT_EQ(engine.stats().running + engine.stats().waiting, 0);
  }
}

}  // namespace
}  // namespace kvant::engine
