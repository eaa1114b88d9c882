#include "engine/models/registry.h"
#include "engine/models/rope_params.h"
#include "support/engine_models.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

/// Metadata and tensors of a one-layer llama file, each of which a test may change.
struct LlamaFile {
  std::string architecture = "llama";
  uint32_t q_heads = 4;
  uint32_t kv_heads = 2;
  uint32_t rope_dim = 16;
  std::string rope_scaling{};
  bool linear_factor = false;
  std::vector<float> rope_factors{};
  bool q_of_wrong_shape = false;
  std::string left_out{};
  std::string extra_tensor{};
  bool biases = false;
  uint32_t latent_rank = 0;

  std::vector<std::byte> bytes() const {
    testing::GgufWriter writer;
    writer.add_string("general.architecture", architecture);
    writer.add_u32("llama.context_length", 128);
    writer.add_u32("llama.embedding_length", 64);
    writer.add_u32("llama.block_count", 1);
    writer.add_u32("llama.feed_forward_length", 96);
    writer.add_u32("llama.attention.head_count", q_heads);
    writer.add_u32("llama.attention.head_count_kv", kv_heads);
    writer.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    writer.add_u32("llama.rope.dimension_count", rope_dim);
    if (!rope_scaling.empty()) writer.add_string("llama.rope.scaling.type", rope_scaling);
    if (latent_rank > 0) writer.add_u32("llama.attention.kv_lora_rank", latent_rank);
    if (linear_factor) writer.add_f32("llama.rope.scaling.factor", 4.0f);
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      if (name == left_out) return;
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      std::vector<float> values(static_cast<size_t>(count));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
      writer.add_tensor(name, shape, GgufType::kF32, std::span<const float>(values));
    };
    add("token_embd.weight", {64, 300});
    add("output_norm.weight", {64});
    add("blk.0.attn_norm.weight", {64});
    add("blk.0.attn_q.weight", {64, q_of_wrong_shape ? 32 : 64});
    add("blk.0.attn_k.weight", {64, int64_t{kv_heads} * 16});
    add("blk.0.attn_v.weight", {64, int64_t{kv_heads} * 16});
    add("blk.0.attn_output.weight", {64, 64});
    add("blk.0.ffn_norm.weight", {64});
    add("blk.0.ffn_gate.weight", {64, 96});
    add("blk.0.ffn_up.weight", {64, 96});
    add("blk.0.ffn_down.weight", {96, 64});
    if (biases) {
      add("blk.0.attn_q.bias", {64});
      add("blk.0.attn_k.bias", {int64_t{kv_heads} * 16});
      add("blk.0.attn_v.bias", {int64_t{kv_heads} * 16});
    }
    if (!extra_tensor.empty()) add(extra_tensor, {64});
    if (!rope_factors.empty())
      writer.add_tensor("rope_freqs.weight", {static_cast<int64_t>(rope_factors.size())}, GgufType::kF32,
                        std::span<const float>(rope_factors));
    return writer.bytes();
  }
};

/// Opens the file, which must parse, and returns the model's refusal; "" when it opens.
std::string refusal(const LlamaFile& file) {
  const std::vector<std::byte> bytes = file.bytes();
  auto parsed = GgufFile::parse(bytes, "test.gguf");
  if (!parsed) return "does not parse: " + parsed.error().message();
  const auto model = open_gguf_model(std::make_shared<const GgufFile>(*std::move(parsed)));
  return model ? "" : model.error().message();
}

TEST(ModelRegistry, ReadsALlamaConfiguration) {
  const ModelSource source = testing::open_model(LlamaFile().bytes());
  EXPECT_EQ(source.config.architecture, "llama");
  EXPECT_EQ(source.config.vocabulary_size, 300);
  EXPECT_EQ(source.config.hidden_size, 64);
  EXPECT_TRUE(source.config.tied_head);
  ASSERT_EQ(source.config.num_layers(), 1);
  const LayerConfig& layer = source.config.layers[0];
  EXPECT_EQ(layer.head_dim_k, 16);
  EXPECT_EQ(layer.head_dim_v, 16);
  EXPECT_FLOAT_EQ(layer.softmax_scale, 0.25f);
  EXPECT_EQ(layer.rope.style, RopeStyle::kHalves);
  EXPECT_FALSE(layer.qkv_bias);
}

TEST(ModelRegistry, BringsInterleavedRowsToHalves) {
  const ModelSource source = testing::open_model(LlamaFile().bytes());
  // The first value of row r is 64 r. Channel 1 of head 1 is stored as pair 1's first row, channel 9 as its second.
  std::vector<float> row(64);
  source.layers[0].q.read(17, 18, row.data());
  EXPECT_EQ(row[0], 64.0f * 18);
  source.layers[0].q.read(25, 26, row.data());
  EXPECT_EQ(row[0], 64.0f * 19);
  source.layers[0].v.read(9, 10, row.data());
  EXPECT_EQ(row[0], 64.0f * 9) << "values are not turned";
}

TEST(ModelRegistry, BringsBiasesToHalvesToo) {
  const ModelSource source = testing::open_model(LlamaFile{.biases = true}.bytes());
  EXPECT_TRUE(source.config.layers[0].qkv_bias);
  std::vector<float> bias(64);
  source.layers[0].q_bias.read(0, 1, bias.data());
  EXPECT_EQ(bias[17], 18.0f);
  EXPECT_EQ(bias[25], 19.0f);
  source.layers[0].v_bias.read(0, 1, bias.data());
  EXPECT_EQ(bias[17], 17.0f);
}

TEST(ModelRegistry, LeavesChannelsWithoutRopeInPlace) {
  LlamaFile file;
  file.rope_dim = 8;
  const ModelSource source = testing::open_model(file.bytes());
  std::vector<float> row(64);
  source.layers[0].k.read(4, 5, row.data());
  EXPECT_EQ(row[0], 64.0f * 1);
  source.layers[0].k.read(12, 13, row.data());
  EXPECT_EQ(row[0], 64.0f * 12);
}

TEST(ModelRegistry, RefusesWhatItDoesNotKnowByName) {
  LlamaFile file;
  file.architecture = "mamba";
  EXPECT_EQ(refusal(file),
            "test.gguf: architecture 'mamba' is not supported; supported: llama, qwen2, qwen3, qwen3moe, gemma2, "
            "gemma3, gpt-oss, smollm3");
  file = {.rope_scaling = "longrope"};
  EXPECT_NE(refusal(file).find("RoPE scaling 'longrope' is not supported"), std::string::npos) << refusal(file);
  file = {.extra_tensor = "blk.0.ffn_down.bias"};
  EXPECT_NE(refusal(file).find("'blk.0.ffn_down.bias' is not supported"), std::string::npos) << refusal(file);
}

TEST(ModelRegistry, RefusesLatentAttentionWithOneLine) {
  LlamaFile file;
  file.architecture = "deepseek2";
  EXPECT_EQ(refusal(file),
            "test.gguf: general.architecture is 'deepseek2', which is multi-head latent attention (MLA); neither an "
            "nvfp4 or fp8 (e4m3, e5m2) cache nor a 16-bit one holds its latent vectors; keys and values per head are "
            "needed: use a checkpoint of another family");
  file = {.latent_rank = 512};
  EXPECT_TRUE(refusal(file).starts_with("test.gguf: llama.attention.kv_lora_rank is 512, which is")) << refusal(file);
}

TEST(ModelRegistry, ChecksShapesBeforeReadingWeights) {
  LlamaFile file;
  file.q_of_wrong_shape = true;
  EXPECT_EQ(refusal(file),
            "test.gguf: tensor 'blk.0.attn_q.weight' has shape [64, 32]; the model's configuration needs [64, 64]");
  file = {.left_out = "blk.0.ffn_up.weight"};
  EXPECT_EQ(refusal(file), "test.gguf: tensor 'blk.0.ffn_up.weight' is missing");
  file = {.kv_heads = 3};
  EXPECT_NE(refusal(file).find("4 query heads cannot share 3 KV heads"), std::string::npos);
  file = {.rope_dim = 18};
  EXPECT_NE(refusal(file).find("llama.rope.dimension_count is 18"), std::string::npos) << refusal(file);
  file = {.q_heads = 0};
  EXPECT_NE(refusal(file).find("llama.attention.head_count is 0"), std::string::npos) << refusal(file);
}

TEST(ModelRegistry, ReadsLinearScalingAndFrequencyFactors) {
  LlamaFile file;
  file.rope_scaling = "linear";
  file.linear_factor = true;
  EXPECT_EQ(testing::open_model(file.bytes()).config.layers[0].rope.scaling.kind, RopeScalingKind::kLinear);
  EXPECT_EQ(rope_params(testing::open_model(file.bytes()).config.layers[0].rope).frequency_factors,
            std::vector<float>(8, 4.0f));
  file.rope_factors = std::vector<float>(8, 2.0f);
  EXPECT_NE(refusal(file).find("both RoPE scaling 'linear' and rope_freqs.weight"), std::string::npos);
  file.rope_scaling = "";
  EXPECT_EQ(rope_params(testing::open_model(file.bytes()).config.layers[0].rope).frequency_factors, file.rope_factors);
  file.rope_factors[3] = 0.0f;
  EXPECT_NE(refusal(file).find("rope_freqs.weight holds 0"), std::string::npos);
}

TEST(ModelRegistry, HashesTheModel) {
  LlamaFile file;
  const std::string hash = testing::open_model(file.bytes()).hash;
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(testing::open_model(file.bytes()).hash, hash);
  file.kv_heads = 4;
  EXPECT_NE(testing::open_model(file.bytes()).hash, hash);
}

TEST(RopeParams, ScalesLlama3Frequencies) {
  const RopeConfig rope{.dim = 64,
                        .theta = 500000.0f,
                        .scaling = {.kind = RopeScalingKind::kLlama3,
                                    .factor = 32.0f,
                                    .original_context = 8192,
                                    .low_frequency_factor = 1.0f,
                                    .high_frequency_factor = 4.0f},
                        .frequency_factors = {}};
  const std::vector<float> factors = rope_params(rope).frequency_factors;
  ASSERT_EQ(factors.size(), 32u);
  for (size_t i = 0; i <= 14; ++i) EXPECT_FLOAT_EQ(factors[i], 1.0f) << i;
  EXPECT_NEAR(1.0f / factors[15], 0.6056f, 1e-4f);
  EXPECT_NEAR(1.0f / factors[16], 0.3037f, 1e-4f);
  EXPECT_NEAR(1.0f / factors[17], 0.1034f, 1e-4f);
  for (size_t i = 18; i < 32; ++i) EXPECT_FLOAT_EQ(factors[i], 32.0f) << i;
}

}  // namespace
}  // namespace kvant::engine
