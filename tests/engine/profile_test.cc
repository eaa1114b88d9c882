#include "engine/calibration/calibrate.h"
#include "engine/calibration/conditioned_keys.h"
#include "engine/calibration/profile_store.h"
#include "support/engine_models.h"
#include "support/temp_dir.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

class ProfileTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::TinyModel>();
    profile_ = std::make_unique<KvProfile>(make(kCalibrationContext));
  }
  static void TearDownTestSuite() {
    model_.reset();
    profile_.reset();
  }
  static KvProfile make(int32_t context) {
    const std::vector<int32_t> text = testing::random_tokens(600, model_->vocabulary(), 9);
    return calibrate(model_->runner(), text, context, model_->hash(), {}).value();
  }

  static inline std::unique_ptr<testing::TinyModel> model_;
  static inline std::unique_ptr<KvProfile> profile_;
};

TEST_F(ProfileTest, HasBalancesWithGeometricMeanOne) {
  for (const LayerProfile& layer : profile_->layers) {
    ASSERT_EQ(layer.z.size(), 32u);
    for (size_t head = 0; head < 2; ++head) {
      double sum = 0;
      for (size_t d = 0; d < 16; ++d) sum += std::log(static_cast<double>(layer.z[head * 16 + d]));
      EXPECT_NEAR(sum, 0.0, 1e-5);
    }
    for (size_t i = 0; i < layer.z.size(); ++i) EXPECT_EQ(layer.zi[i], 1.0f / layer.z[i]);
  }
}

TEST_F(ProfileTest, SaysWhatItWasMadeFrom) {
  EXPECT_EQ(profile_->tokens, 600);
  EXPECT_EQ(profile_->context, kCalibrationContext);
  EXPECT_EQ(profile_->model_hash, model_->hash());
  EXPECT_EQ(profile_->id, profile_id(*profile_));
  EXPECT_EQ(make(kCalibrationContext).id, profile_->id) << "calibration is repeatable";
  EXPECT_NE(make(100).id, profile_->id);
}

TEST_F(ProfileTest, GivesRoomAboveWhatItSaw) {
  EXPECT_FLOAT_EQ(nvfp4_scale(2688.0f), 2.0f);
  EXPECT_FLOAT_EQ(nvfp4_scale(0.0f), 0x1p-14f);
  EXPECT_FLOAT_EQ(scale_for_format(attn::KvFormat::kE4m3, nvfp4_scale(448.0f)), 2.0f);
  EXPECT_FLOAT_EQ(scale_for_format(attn::KvFormat::kE5m2, nvfp4_scale(57344.0f)), 2.0f);
  EXPECT_FLOAT_EQ(scale_for_format(attn::KvFormat::kBf16, 0.06f), 1.0f);
}

TEST_F(ProfileTest, MeasuresWhatRoundingDoesToScores) {
  std::vector<float> noise;
  const std::vector<int32_t> text = testing::random_tokens(200, model_->vocabulary(), 9);
  ASSERT_TRUE(calibrate(model_->runner(), text, 100, model_->hash(), {}, &noise));
  ASSERT_EQ(noise.size(), profile_->layers.size());
  for (const float value : noise) {
    EXPECT_GT(value, 0.0f);
    EXPECT_LT(value, 1.0f);
  }
}

TEST_F(ProfileTest, NamesLayersWithRoughKeys) {
  EXPECT_EQ(describe_rough_layers(std::vector<float>{0.1f, 0.3f}), "");
  EXPECT_NE(describe_rough_layers(std::vector<float>{2.0f, 0.1f, 3.5f}).find("layers 0,2: NVFP4 moves"),
            std::string::npos);
  EXPECT_NE(describe_rough_layers(std::vector<float>{0.1f, 2.0f}).find("--kv-layers \"1=bf16;*=nvfp4\""),
            std::string::npos);
}

TEST(ScoreNoise, IsInUnitsOfScores) {
  LayerConfig layer;
  layer.num_q_heads = layer.num_kv_heads = 1;
  layer.head_dim_k = layer.head_dim_v = 64;
  layer.softmax_scale = 0.125f;
  const std::vector<double> queries(64, 1.0);
  LayerProfile profile{.mu = std::vector<float>(64, 0.0f),
                       .z = std::vector<float>(64, 1.0f),
                       .zi = std::vector<float>(64, 1.0f),
                       .g_k = {{1.0f}, {1.0f}, {1.0f}},
                       .g_v = {1.0f}};
  ThreadPool pool(1);
  const auto noise = [&](float size) {
    std::vector<float> keys;
    for (int32_t i = 0; i < 64 * 32; ++i) keys.push_back(size * std::sin(static_cast<float>(i * i % 97)));
    return score_noise(layer, profile, keys, queries, Stream::on_cpu(pool)).value();
  };
  EXPECT_GT(noise(1.0f), 0.0f);
  EXPECT_NEAR(noise(10.0f) / noise(1.0f), 10.0f, 2.0f);
}

TEST_F(ProfileTest, ComesBackFromAFile) {
  const testing::TempDir dir;
  const std::filesystem::path path = dir.path() / "profile.safetensors";
  ASSERT_TRUE(save_profile(*profile_, path).ok());
  const KvProfile loaded = load_profile(path).value();
  EXPECT_EQ(loaded.id, profile_->id);
  EXPECT_EQ(profile_id(loaded), profile_->id);
  EXPECT_TRUE(loaded.check_shapes(model_->runner().config()).ok());
}

TEST_F(ProfileTest, RefusesDamagedFiles) {
  const testing::TempDir dir;
  const std::filesystem::path path = dir.path() / "profile.safetensors";
  ASSERT_TRUE(save_profile(*profile_, path).ok());
  std::ifstream in(path, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const auto load = [&](const std::string& contents) {
    return load_profile(dir.write("damaged.safetensors", std::as_bytes(std::span(contents))));
  };
  ASSERT_TRUE(load(good));
  for (size_t i = 1; i < 40; ++i) {
    std::string bad = good;
    bad[good.size() * i / 40] ^= 0x10;
    EXPECT_FALSE(load(bad)) << "byte " << good.size() * i / 40;
    EXPECT_FALSE(load(good.substr(0, good.size() * i / 40)));
  }
}

TEST_F(ProfileTest, IsFoundInTheStoreByModel) {
  const testing::TempDir dir;
  std::vector<std::string> notices;
  const ProfileStore store(dir.path(), [&](std::string_view text) { notices.emplace_back(text); });
  const ModelConfig& config = model_->runner().config();
  EXPECT_EQ(store.find(profile_->model_hash, config).error().code(), StatusCode::kNotFound);
  store.keep(*profile_);
  EXPECT_EQ(store.find(profile_->model_hash, config).value().id, profile_->id);
  EXPECT_EQ(store.find("0123456789abcdef", config).error().code(), StatusCode::kNotFound);
  EXPECT_TRUE(notices.empty());
}

TEST_F(ProfileTest, AnnouncesWhatTheStoreCannotDo) {
  const testing::TempDir dir;
  std::vector<std::string> notices;
  const NoticeFn notice = [&](std::string_view text) { notices.emplace_back(text); };
  const std::string text = "not a directory";
  const std::filesystem::path file = dir.write("file", std::as_bytes(std::span(text)));
  ProfileStore(file, notice).keep(*profile_);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("is not stored"), std::string::npos);

  const ProfileStore store(dir.path(), notice);
  std::filesystem::create_directories(dir.path() / "profiles");
  std::ofstream(dir.path() / "profiles" / (profile_->model_hash + ".safetensors")) << text;
  EXPECT_FALSE(store.find(profile_->model_hash, model_->runner().config()));
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_NE(notices[1].find("made again"), std::string::npos);
}

TEST_F(ProfileTest, IsWantedByWhatGainsFromIt) {
  for (const char* text : {"nvfp4", "nvfp4:cond=none", "nvfp4:cond=mean", "k=e4m3/v=nvfp4", "e4m3:cond=full"})
    EXPECT_TRUE(spec_wants_profile(testing::spec(text))) << text;
  for (const char* text : {"bf16", "f16", "f32", "e4m3", "e4m3-plain", "nvfp4-plain", "e5m2"})
    EXPECT_FALSE(spec_wants_profile(testing::spec(text))) << text;
  EXPECT_TRUE(spec_needs_profile(testing::spec("nvfp4:cond=mean")));
  EXPECT_FALSE(spec_needs_profile(testing::spec("nvfp4:cond=none")));
}

TEST(NeutralText, IsPlainText) {
  EXPECT_GT(neutral_text().size(), 3500u);
  for (const char c : neutral_text()) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
}

}  // namespace
}  // namespace kvant::engine
