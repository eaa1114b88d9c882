#include "engine/models/folder_config.h"
#include "engine/models/model_files.h"
#include "engine/models/rope_params.h"
#include "support/checkpoint_dir.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvant::engine {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 40},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"max_position_embeddings", 128},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5}};
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

Result<ModelConfig> read(const json& config) {
  KVANT_ASSIGN_OR_FAIL(const JsonObject object, JsonObject::parse(config.dump(), "config.json"));
  KVANT_ASSIGN_OR_FAIL(const Family* family, read_folder_family(object));
  return read_folder_config(object, *family);
}

std::string refusal(const json& config) {
  const auto found = read(config);
  return found ? "" : found.error().message();
}

std::vector<int32_t> windows(const json& config) {
  const ModelConfig model = read(config).value();
  std::vector<int32_t> out;
  for (const LayerConfig& layer : model.layers) out.push_back(layer.window);
  return out;
}

TEST(FolderConfig, RefusesByNameWhatItDoesNotKnow) {
  EXPECT_EQ(refusal(with(llama_config(), {{"architectures", {"MambaForCausalLM"}}})),
            "config.json: architecture 'MambaForCausalLM' is not supported; supported: LlamaForCausalLM, "
            "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, Gemma2ForCausalLM, "
            "Gemma3ForCausalLM, GptOssForCausalLM, SmolLM3ForCausalLM");
  EXPECT_THAT(refusal(with(llama_config(), {{"hidden_act", "relu2"}})), HasSubstr("hidden_act 'relu2'"));
  EXPECT_THAT(refusal(with(llama_config(), {{"rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}}})),
              HasSubstr("RoPE type 'longrope' is not supported"));
  EXPECT_THAT(refusal(with(llama_config(), {{"rope_parameters", {{"rope_type", "mrope"}}}})),
              HasSubstr("RoPE type 'mrope'"));
  EXPECT_THAT(refusal(with(llama_config(), {{"mlp_bias", true}})), HasSubstr("mlp_bias 'true'"));
  EXPECT_THAT(refusal(with(llama_config(), {{"layer_types", {"linear_attention"}}})),
              HasSubstr("layer_types 'linear_attention'"));
}

TEST(FolderConfig, RefusesNumbersThatFitNoModel) {
  EXPECT_THAT(refusal(with(llama_config(), {{"num_key_value_heads", 3}})), HasSubstr("2 query heads"));
  EXPECT_THAT(refusal(with(llama_config(), {{"num_attention_heads", 3}, {"num_key_value_heads", 1}})),
              HasSubstr("head_dim is missing"));
  EXPECT_THAT(refusal(with(llama_config(), {{"partial_rotary_factor", 0.1}})), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refusal(with(llama_config(), {{"layer_types", {"sliding_attention"}}})),
              HasSubstr("sliding_window is missing"));
  EXPECT_THAT(refusal(with(llama_config(), {{"layer_types", json::array()}})), HasSubstr("0 entries for 1 layers"));
  EXPECT_THAT(refusal(with(llama_config(), {{"num_experts", 4}, {"num_experts_per_tok", 5}})),
              HasSubstr("there are 4 experts"));
}

TEST(FolderConfig, GivesEachLayerItsWindow) {
  const json qwen = with(llama_config(), {{"architectures", {"Qwen2ForCausalLM"}},
                                          {"num_hidden_layers", 3},
                                          {"sliding_window", 64},
                                          {"max_window_layers", 1}});
  EXPECT_THAT(windows(qwen), ElementsAre(0, 0, 0)) << "Qwen2 wants to be told";
  EXPECT_THAT(windows(with(qwen, {{"use_sliding_window", true}})), ElementsAre(0, 64, 64));
  const json mistral = with(qwen, {{"architectures", {"MistralForCausalLM"}}});
  EXPECT_THAT(windows(mistral), ElementsAre(64, 64, 64));
  EXPECT_THAT(windows(with(mistral, {{"sliding_window", nullptr}})), ElementsAre(0, 0, 0));
  const json gemma = with(qwen, {{"architectures", {"Gemma3ForCausalLM"}}, {"hidden_act", "gelu_pytorch_tanh"}});
  EXPECT_THAT(windows(with(gemma, {{"sliding_window_pattern", 2}})), ElementsAre(64, 0, 64));
  EXPECT_THAT(windows(with(gemma, {{"layer_types", {"full_attention", "full_attention", "sliding_attention"}}})),
              ElementsAre(0, 0, 64));
}

TEST(FolderConfig, ReadsRopeInBothSpellings) {
  const json gemma = with(llama_config(), {{"architectures", {"Gemma3ForCausalLM"}},
                                           {"hidden_act", "gelu_pytorch_tanh"},
                                           {"num_hidden_layers", 6},
                                           {"sliding_window", 64}});
  const ModelConfig old_form = read(with(gemma, {{"rope_theta", 5e5},
                                                 {"rope_local_base_freq", 2e4},
                                                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}))
                                   .value();
  const ModelConfig new_form =
      read(with(gemma, {{"rope_parameters",
                         {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
                          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}}}))
          .value();
  EXPECT_EQ(old_form.layers, new_form.layers);
  EXPECT_EQ(old_form.layers[5].rope.theta, 5e5f);
  EXPECT_EQ(old_form.layers[5].rope.scaling.factor, 8.0f);
  EXPECT_EQ(old_form.layers[0].rope.theta, 2e4f);
  EXPECT_EQ(old_form.layers[0].rope.scaling.kind, RopeScalingKind::kNone);
}

TEST(FolderConfig, TurnsNothingInLayersWithoutRope) {
  const json smol = with(llama_config(), {{"architectures", {"SmolLM3ForCausalLM"}}, {"num_hidden_layers", 4}});
  const ModelConfig by_period = read(smol).value();
  EXPECT_EQ(by_period.layers[2].rope.dim, 16);
  EXPECT_EQ(by_period.layers[3].rope.dim, 0);
  const ModelConfig by_list = read(with(smol, {{"no_rope_layers", {0, 1, 1, 1}}})).value();
  EXPECT_EQ(by_list.layers[0].rope.dim, 0);
  EXPECT_EQ(by_list.layers[3].rope.dim, 16);
}

TEST(FolderConfig, TakesTheAttentionScaleOfYarn) {
  const auto scale = [](const json& changes) {
    json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
    scaling.update(changes);
    return rope_params(read(with(llama_config(), {{"rope_scaling", scaling}})).value().layers[0].rope).scale;
  };
  EXPECT_NEAR(scale(json::object()), 0.1 * std::log(4.0) + 1.0, 1e-6);
  EXPECT_NEAR(scale({{"attention_factor", 1.25}}), 1.25, 1e-6);
  EXPECT_NEAR(scale({{"mscale", 1.0}, {"mscale_all_dim", 1.0}}), 1.0, 1e-6);
}

/// A folder of one layer; tensors may be added or left out.
class FolderModel : public ::testing::Test {
 protected:
  testing::CheckpointDir dir_;
  std::string left_out_;
  std::string added_;

  void add(SafetensorsWriter& writer, const std::string& name, std::vector<int64_t> shape) const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    if (name != left_out_) writer.add_f32(name, std::move(shape), std::vector<float>(static_cast<size_t>(count), 0.5f));
  }
  Result<ModelSource> open(const json& config) const {
    SafetensorsWriter writer;
    const std::string layer = "model.layers.0.";
    add(writer, "model.embed_tokens.weight", {40, 32});
    add(writer, "model.norm.weight", {32});
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      add(writer, layer + norm + ".weight", {32});
    add(writer, layer + "self_attn.q_proj.weight", {32, 32});
    add(writer, layer + "self_attn.k_proj.weight", {16, 32});
    add(writer, layer + "self_attn.v_proj.weight", {16, 32});
    add(writer, layer + "self_attn.o_proj.weight", {32, 32});
    add(writer, layer + "mlp.gate_proj.weight", {48, 32});
    add(writer, layer + "mlp.up_proj.weight", {48, 32});
    add(writer, layer + "mlp.down_proj.weight", {32, 48});
    if (!added_.empty()) add(writer, added_, {40, 32});
    dir_.write("model.safetensors", writer);
    dir_.write("config.json", config.dump());
    KVANT_ASSIGN_OR_FAIL(const ModelFiles files, ModelFiles::open(dir_.path()));
    return files.open_model();
  }
};

TEST_F(FolderModel, FindsItsHeadHoweverItIsDeclared) {
  const auto tied = [&](const json& config) { return open(config).value().config.tied_head; };
  EXPECT_TRUE(tied(llama_config()));
  EXPECT_TRUE(tied(with(llama_config(), {{"tie_word_embeddings", true}})));
  EXPECT_THAT(open(with(llama_config(), {{"tie_word_embeddings", false}})).error().message(),
              HasSubstr("tie_word_embeddings is false but the weights hold no lm_head.weight"));
  added_ = "lm_head.weight";
  EXPECT_FALSE(tied(llama_config()));
  EXPECT_FALSE(tied(with(llama_config(), {{"tie_word_embeddings", false}})));
  EXPECT_TRUE(tied(with(llama_config(), {{"tie_word_embeddings", true}})));
}

TEST_F(FolderModel, NamesWhatIsMissingOrUnknown) {
  left_out_ = "model.layers.0.mlp.up_proj.weight";
  EXPECT_THAT(open(llama_config()).error().message(), HasSubstr("'model.layers.0.mlp.up_proj.weight' is missing"));
  left_out_.clear();
  added_ = "model.layers.0.self_attn.q_proj.bias";
  EXPECT_THAT(open(llama_config()).error().message(), HasSubstr("'model.layers.0.self_attn.q_proj.bias'"));
  added_.clear();
  EXPECT_THAT(open(with(llama_config(), {{"intermediate_size", 64}})).error().message(),
              HasSubstr("has shape [48, 32]"));
}

TEST_F(FolderModel, IgnoresTablesThatFollowFromTheConfiguration) {
  added_ = "model.layers.0.self_attn.rotary_emb.inv_freq";
  EXPECT_TRUE(open(llama_config()));
}

}  // namespace
}  // namespace kvant::engine
