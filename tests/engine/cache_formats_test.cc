#include "engine/calibration/calibrate.h"
#include "support/engine_models.h"
#include "support/tolerance.h"

#include <memory>

#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

using testing::TinyModel;

/// One model, its calibration and its f32-cache answers, shared by the tests of this file.
class CacheFormats : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<TinyModel>();
    const std::vector<int32_t> text = testing::random_tokens(600, model_->vocabulary(), 9);
    profile_ = std::make_shared<const KvProfile>(
        calibrate(model_->runner(), text, kCalibrationContext, model_->hash(), {}).value());
    tokens_ = testing::random_tokens(340, model_->vocabulary(), 3);
    baseline_ = model_->run_decoding(*model_->cache("f32"), tokens_, kPrompt);
  }
  static void TearDownTestSuite() {
    model_.reset();
    profile_.reset();
  }
  static double divergence(std::string_view text, std::shared_ptr<const KvProfile> profile = profile_) {
    const auto cache = model_->cache(text, std::move(profile));
    return testing::mean_divergence(baseline_, model_->run_decoding(*cache, tokens_, kPrompt),
                                    static_cast<size_t>(model_->vocabulary()));
  }

  static constexpr size_t kPrompt = 300;
  static inline std::unique_ptr<TinyModel> model_;
  static inline std::shared_ptr<const KvProfile> profile_;
  static inline std::vector<int32_t> tokens_;
  static inline std::vector<float> baseline_;
};

TEST_P(CacheFormats, StaysCloseToAnExactCache) {
  EXPECT_LT(divergence(GetParam()), test::tiny_model_divergence(testing::spec(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Specs, CacheFormats,
                         ::testing::Values("f16", "bf16", "e4m3", "e4m3-plain", "e5m2", "e5m2-plain", "nvfp4",
                                           "nvfp4:cond=mean", "nvfp4:cond=none", "nvfp4:edges=none", "nvfp4-plain",
                                           "k=e4m3/v=nvfp4", "k=f16/v=nvfp4", "nvfp4:policy=four_over_six",
                                           "nvfp4:edges=0,32", "nvfp4:edges=16,0", "e4m3:cond=full",
                                           "nvfp4:edges=20,300"));

TEST_F(CacheFormats, ConditioningAloneChangesNothing) {
  // With everything in the exact tail only f16 rounding of K and V is left, and it falls on other values.
  const auto run = [&](std::string_view text) {
    return model_->run_decoding(*model_->cache(text, profile_), tokens_, kPrompt);
  };
  const std::vector<float> none = run("nvfp4:cond=none:edges=0,1024");
  EXPECT_LT(testing::largest_difference(none, run("nvfp4:cond=full:edges=0,1024")), test::f16_cache_logit_tolerance());
  EXPECT_LT(testing::largest_difference(none, run("nvfp4:cond=mean:edges=0,1024")), test::f16_cache_logit_tolerance());
}

TEST_F(CacheFormats, IgnoresAProfileWhenTheCacheHas16Bits) {
  // A stray scale must not reach a cache that has none.
  auto wild = std::make_shared<KvProfile>(*profile_);
  for (LayerProfile& layer : wild->layers) {
    for (std::vector<float>* values : {&layer.mu, &layer.z, &layer.zi, &layer.g_v, &layer.g_k[0], &layer.g_k[2]})
      for (float& value : *values) value = 0.06f;
  }
  for (const char* text : {"bf16", "f16", "nvfp4-plain", "e4m3-plain"}) {
    const auto with = model_->run_decoding(*model_->cache(text, wild), tokens_, kPrompt);
    const auto without = model_->run_decoding(*model_->cache(text), tokens_, kPrompt);
    EXPECT_EQ(with, without) << text;
  }
}

TEST_F(CacheFormats, RefusesConditionedKeysWithoutAProfile) {
  const auto result = model_->runner().create_cache({.spec = testing::spec("nvfp4"), .max_tokens = 64, .profile = {}});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.error().message().find("--kv-profile auto"), std::string::npos) << result.error().message();
}

TEST_F(CacheFormats, RefusesAProfileOfAnotherShape) {
  auto other = std::make_shared<KvProfile>(*profile_);
  other->layers.pop_back();
  const auto result =
      model_->runner().create_cache({.spec = testing::spec("nvfp4"), .max_tokens = 64, .profile = other});
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find("has 1 layers, the model has 2"), std::string::npos);
}

TEST_F(CacheFormats, CountsBytesOfTheBaseFormatAndOfEdges) {
  // 2 layers, 2 KV heads of 16: 64 K and 64 V elements a token and layer pair.
  EXPECT_DOUBLE_EQ(model_->cache("bf16")->bytes_per_token(), 256.0);
  EXPECT_DOUBLE_EQ(model_->cache("nvfp4-plain")->bytes_per_token(), 72.0);
  const auto cache = model_->cache("nvfp4", profile_);
  EXPECT_DOUBLE_EQ(cache->bytes_per_token(), 72.0);
  EXPECT_DOUBLE_EQ(cache->effective_bytes_per_token(48), 256.0);
  // 512 tokens: 16 exact at the head, 32 at the end.
  EXPECT_DOUBLE_EQ(cache->effective_bytes_per_token(512), (48 * 256.0 + 464 * 72.0) / 512);
}

}  // namespace
}  // namespace kvant::engine
