#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/core/device.h"
#include "kvant/engine/engine.h"
#include "support/engine_models.h"
#include "support/temp_dir.h"

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;

/// The whole engine on CUDA: loading, calibration, scheduling, text.
class CudaEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device: GPU tests did not run";
    model_ = dir_.write(
        "tiny.gguf",
        testing::tiny_llama_gguf(
            {.hidden = 256, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 384, .weights = GgufType::kQ8_0}));
  }
  std::unique_ptr<Engine> load(std::string_view kv) {
    auto engine = Engine::load({.model = model_,
                                .kv = testing::spec(kv),
                                .device = DeviceChoice::kCuda,
                                .max_sequences = 4,
                                .cache_dir = dir_.path() / "cache",
                                .progress = {},
                                .notice = {}});
    EXPECT_TRUE(engine) << engine.error().to_string();
    return engine ? *std::move(engine) : nullptr;
  }

  testing::TempDir dir_;
  std::filesystem::path model_;
};

TEST_F(CudaEngine, GeneratesTheSameAgainAndBesideOthers) {
  for (const char* kv : {"auto", "e4m3", "nvfp4"}) {
    const auto engine = load(kv);
    ASSERT_NE(engine, nullptr);
    EXPECT_THAT(engine->facts().route, HasSubstr("cuda/"));
    EXPECT_EQ(engine->facts().weights, "bf16");
    GenerateRequest request;
    request.prompt = testing::random_tokens(70, 320, 3);
    request.max_tokens = 40;
    request.ignore_end_of_turn = true;
    const auto first = engine->generate(request);
    ASSERT_TRUE(first) << first.error().to_string();
    EXPECT_EQ(first->token_ids.size(), 40u);
    // Another engine, so that no prefix is reused: the same passes, the same bits.
    const auto second = load(kv)->generate(request);
    ASSERT_TRUE(second) << second.error().to_string();
    EXPECT_EQ(second->token_ids, first->token_ids) << kv;
    for (uint32_t i = 0; i < 3; ++i) {
      GenerateRequest other = request;
      other.prompt = testing::random_tokens(20 + 90 * static_cast<int32_t>(i), 320, 50 + i);
      ASSERT_TRUE(engine->submit(other));
    }
    while (engine->step()) continue;
    EXPECT_EQ(engine->stats().finished, 4);
    EXPECT_EQ(engine->stats().running, 0);
  }
}

}  // namespace
}  // namespace kvant::engine
