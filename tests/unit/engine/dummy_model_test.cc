#include "engine/models/dummy_model.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/float_bits.h"
#include "support/temp_dir.h"

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kShapes = std::filesystem::path(KVANT_SOURCE_DIR) / "bench/shapes";

class DummyModel : public ::testing::Test {
 protected:
  Result<ModelSource> open(const std::string& json) {
    const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(json.data()),
                                       reinterpret_cast<const std::byte*>(json.data()) + json.size());
    return open_dummy_model(dir_.write("shape.json", bytes));
  }
  testing::TempDir dir_;
};

TEST_F(DummyModel, HasTheShapeOfItsFile) {
  const auto source = open_dummy_model(kShapes / "qwen3-8b.json");
  ASSERT_TRUE(source) << source.error().to_string();
  EXPECT_EQ(source->config.name, "Qwen3-8B");
  ASSERT_EQ(source->config.num_layers(), 36);
  EXPECT_TRUE(source->config.layers[0].qk_norm);
  EXPECT_EQ(source->layers[7].k.rows, 8 * 128);
  EXPECT_EQ(source->layers[7].gate.rows, 12288);
  EXPECT_EQ(source->layers[7].q_norm.columns, 128);
  EXPECT_EQ(source->head.rows, 151936);
  EXPECT_TRUE(open_dummy_model(kShapes / "llama-3.1-8b.json"));
}

TEST_F(DummyModel, GivesTheSameWeightsEveryTime) {
  const auto first = open_dummy_model(kShapes / "qwen3-8b.json"), second = open_dummy_model(kShapes / "qwen3-8b.json");
  std::vector<float> whole(3 * 4096), piece(4096), other(4096);
  first->layers[1].q.read(5, 8, whole.data());
  second->layers[1].q.read(6, 7, piece.data());
  first->layers[2].q.read(6, 7, other.data());
  double sum = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    ASSERT_EQ(whole[4096 + i], piece[i]);
    sum += piece[i] * piece[i];
  }
  EXPECT_NE(piece, other);
  EXPECT_NEAR(std::sqrt(sum), 1.0, 0.05) << "a row's length keeps activations near 1";
}

TEST_F(DummyModel, HasFp8WeightsWhereAsked) {
  const auto source = open_dummy_model(kShapes / "qwen3-8b-fp8.json");
  ASSERT_TRUE(source) << source.error().message();
  EXPECT_TRUE(source->fp8_activations);
  EXPECT_FALSE(source->head.read_fp8);
  const WeightView& q = source->layers[1].q;
  ASSERT_TRUE(q.read_fp8);
  std::vector<float> values(4096), scales(4096 / ops::kFp8Group);
  std::vector<uint8_t> codes(4096);
  q.read(6, 7, values.data());
  q.read_fp8(6, 7, codes.data(), scales.data());
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], e4m3_to_float(codes[i]) * scales[i / ops::kFp8Group]);
    sum += values[i] * values[i];
  }
  EXPECT_NEAR(std::sqrt(sum), 1.0, 0.05);
}

TEST_F(DummyModel, HasExpertsSinksAndBiases) {
  const auto source = open_dummy_model(kShapes / "gpt-oss-20b.json");
  ASSERT_TRUE(source) << source.error().message();
  const LayerConfig& layer = source->config.layers[0];
  EXPECT_EQ(layer.experts.count, 32);
  EXPECT_EQ(layer.experts.used, 4);
  const LayerWeights& weights = source->layers[0];
  EXPECT_EQ(weights.router.rows, 32);
  EXPECT_EQ(weights.gate.rows, 32 * 2880);
  EXPECT_EQ(weights.down.rows, 32 * 2880);
  EXPECT_EQ(weights.sinks.columns, 64);
  EXPECT_EQ(weights.output_bias.columns, 2880);
}

TEST_F(DummyModel, RefusesBrokenShapesByName) {
  const std::string rest =
      R"("hidden_size": 64, "num_q_heads": 4, "head_dim": 16, "ffn_size": 96, "vocabulary_size": 320, "context_limit": 64)";
  EXPECT_TRUE(open("{\"num_layers\": 2, " + rest + "}"));
  EXPECT_THAT(open("{" + rest + "}").error().message(), HasSubstr("num_layers is missing"));
  EXPECT_THAT(open("{\"num_layers\": 0, " + rest + "}").error().message(), HasSubstr("num_layers is 0"));
  EXPECT_THAT(open("{\"num_layers\": 2, \"colour\": 1, " + rest + "}").error().message(), HasSubstr("'colour'"));
  EXPECT_THAT(open("{\"num_layers\": 2, \"num_kv_heads\": 3, " + rest + "}").error().message(),
              HasSubstr("4 query heads"));
  EXPECT_EQ(open("[1]").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(open_dummy_model(dir_.path() / "none.json").error().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvant::engine
