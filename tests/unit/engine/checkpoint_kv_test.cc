#include "engine/models/checkpoint_kv.h"

#include "support/checkpoint_dir.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

namespace kvant::engine {
namespace {

using attn::KvFormat;
using ::testing::AllOf;
using testing::CheckpointDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int32_t kLayers = 2;
constexpr int32_t kKvHeads = 2;
constexpr const char* kFp8 = R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8",
    "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"}}})";

ModelConfig model() {
  ModelConfig config;
  config.layers.resize(kLayers);
  for (LayerConfig& layer : config.layers) layer.num_q_heads = 4, layer.num_kv_heads = kKvHeads;
  return config;
}

/// Scale tensors under "model.layers.N." by name; a name with "{}" stands in every layer.
using Scales = std::map<std::string, std::vector<float>>;

Result<CheckpointKv> read(const Scales& scales, const std::string& config = kFp8, const std::string& beside = "") {
  const CheckpointDir dir;
  dir.write("config.json", config);
  if (!beside.empty()) dir.write("hf_quant_config.json", beside);
  SafetensorsWriter writer;
  const float weight = 1.0f;
  writer.add_f32("model.norm.weight", {1}, std::span(&weight, 1));
  for (const auto& [name, values] : scales) {
    const auto shape = values.size() == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{std::ssize(values)};
    if (name.find("{}") == std::string::npos) writer.add_f32("model." + name, shape, values);
    for (int32_t layer = 0; layer < kLayers && name.find("{}") != std::string::npos; ++layer)
      writer.add_f32("model." + fmt::format(fmt::runtime(name), layer), shape, values);
  }
  dir.write("model.safetensors", writer);
  const CheckpointFolder folder = CheckpointFolder::open(dir.path()).value();
  const FolderWeights weights(folder.weights);
  weights.use("model.norm.weight");
  auto kv = read_checkpoint_kv(folder, weights, model());
  if (kv) KVANT_FAIL_IF_ERROR(weights.check_all_used());
  return kv;
}

std::string error_of(const Scales& scales, const std::string& config = kFp8, const std::string& beside = "") {
  const auto kv = read(scales, config, beside);
  if (kv) return "accepted";
  EXPECT_THAT(kv.error().message(), Not(HasSubstr("\n")));
  return kv.error().message();
}

/// The effective scales, and that every tensor counts.
void expect_scales(const Scales& scales, float k, float v, int32_t tensors) {
  const auto kv = read(scales);
  ASSERT_TRUE(kv) << kv.error().message();
  ASSERT_NE(kv->scales, nullptr);
  ASSERT_EQ(kv->scales->layers.size(), 2u);
  for (const CheckpointScales::Layer& layer : kv->scales->layers) {
    EXPECT_THAT(layer.k, ElementsAre(k)) << scales.begin()->first;
    EXPECT_THAT(layer.v, ElementsAre(v)) << scales.begin()->first;
  }
  EXPECT_EQ(kv->scales->num_tensors(), tensors) << scales.begin()->first;
  EXPECT_THAT(kv->notices, IsEmpty());
}

TEST(CheckpointKv, FindsScalesUnderEveryName) {
  for (const auto& [k_module, v_module] :
       std::vector<std::pair<std::string, std::string>>{{"self_attn.k_proj", "self_attn.v_proj"},
                                                        {"self_attn.qkv_proj", "self_attn.qkv_proj"},
                                                        {"self_attn.qkqkv_proj", "self_attn.qkqkv_proj"},
                                                        {"self_attn.attn", "self_attn.attn"},
                                                        {"self_attn", "self_attn"},
                                                        {"mixer.k_proj", "mixer.v_proj"}})
    expect_scales({{"layers.{}." + k_module + ".k_scale", {0.02f}}, {"layers.{}." + v_module + ".v_scale", {0.5f}}},
                  0.02f, 0.5f, 4);
  expect_scales({{"layers.{}.self_attn.k_cache.scale", {0.02f}}, {"layers.{}.self_attn.v_cache.scale", {0.5f}}}, 0.02f,
                0.5f, 4);
  expect_scales(
      {{"layers.{}.self_attn.k_proj.output_scale", {0.02f}}, {"layers.{}.self_attn.v_proj.output_scale", {0.5f}}},
      0.02f, 0.5f, 4);
  for (const char* module : {"self_attn", "self_attn.attn", "self_attn.qkv_proj"})
    expect_scales({{fmt::format("layers.{{}}.{}.kv_scale", module), {0.25f}}}, 0.25f, 0.25f, 2);
}

TEST(CheckpointKv, TakesNoNegativeLayer) {
  EXPECT_THAT(error_of({{"layers.-1.self_attn.k_proj.k_scale", {0.02f}}}), HasSubstr("layers.-1"));
  EXPECT_THAT(error_of({{"layers.-2147483648.self_attn.q_proj.q_scale", {0.02f}}}), HasSubstr("layers.-2147483648"));
}

TEST(CheckpointKv, CountsQueryScalesWithoutUsingThem) {
  const auto kv = read({{"layers.{}.self_attn.k_proj.k_scale", {0.02f}},
                        {"layers.{}.self_attn.v_proj.v_scale", {0.5f}},
                        {"layers.{}.self_attn.q_proj.q_scale", {0.1f}},
                        {"layers.{}.self_attn.attn.prob_scale", {1.0f}}});
  ASSERT_TRUE(kv) << kv.error().message();
  EXPECT_EQ(kv->num_query_scales, 2);
  EXPECT_EQ(kv->scales->num_tensors(), 4);
}

TEST(CheckpointKv, TakesScalesPerHead) {
  const auto kv = read({{"layers.{}.self_attn.k_scale", {0.1f, 0.2f}}, {"layers.{}.self_attn.v_scale", {0.3f, 0.4f}}});
  ASSERT_TRUE(kv) << kv.error().message();
  EXPECT_THAT(kv->scales->layers[1].k, ElementsAre(0.1f, 0.2f));
  EXPECT_THAT(kv->scales->layers[1].v, ElementsAre(0.3f, 0.4f));
}

TEST(CheckpointKv, FillsAMissingHalfWithOneAndSaysSo) {
  const auto v_only = read({{"layers.{}.self_attn.v_proj.v_scale", {0.08f}}}).value();
  EXPECT_THAT(v_only.scales->layers[0].k, ElementsAre(1.0f));
  EXPECT_THAT(v_only.scales->layers[0].v, ElementsAre(0.08f));
  EXPECT_EQ(v_only.scales->num_tensors(), 2);
  EXPECT_THAT(v_only.notices, ElementsAre("the checkpoint has no K scales; 1.0 is used for them"));
  const auto one_layer =
      read({{"layers.{}.self_attn.k_scale", {0.1f}}, {"layers.1.self_attn.v_scale", {0.2f}}}).value();
  EXPECT_THAT(one_layer.notices, ElementsAre("the checkpoint has no V scale for layers 0; 1.0 is used for them"));
  const auto none = read({}).value();
  EXPECT_EQ(none.scales, nullptr);
}

TEST(CheckpointKv, RefusesScalesThatCannotBe) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf, 0.0f, -1.0f, 1e-38f, 1e38f})
    EXPECT_THAT(error_of({{"layers.1.self_attn.k_proj.k_scale", {bad}}}),
                AllOf(HasSubstr("layer 1: KV scale 'model.layers.1.self_attn.k_proj.k_scale' is "),
                      HasSubstr("a positive finite number is needed")));
  EXPECT_THAT(error_of({{"layers.0.self_attn.k_proj.k_scale", {0.1f, 0.2f, 0.3f}}}),
              HasSubstr("has shape [3]; one number or one per KV head (2) is needed"));
  EXPECT_THAT(error_of({{"layers.0.self_attn.q_proj.q_scale", {nan}}}), HasSubstr("q_scale' is nan"));
  EXPECT_THAT(error_of({{"layers.0.self_attn.k_zero_point", {1.0f}}}), HasSubstr("caches with zero points"));
  EXPECT_EQ(error_of({{"layers.0.self_attn.k_zero_point", {0.0f}}}), "accepted");
}

TEST(CheckpointKv, NamesEveryScaleThatHasNoPlace) {
  for (const char* name : {"layers.0.self_attn.k_proj.v_scale", "layers.0.self_attn.kproj.k_scale",
                           "layers.0.self_attn.k_proj.kk_scale", "layers.0.self_attn.o_proj.k_scale"})
    EXPECT_THAT(error_of({{name, {0.1f}}}), AllOf(HasSubstr(name), HasSubstr("of no form that kvant knows")));
  EXPECT_THAT(error_of({{"layers.7.self_attn.k_scale", {0.1f}}}), HasSubstr("is of layer 7; the model has 2 layers"));
  EXPECT_THAT(error_of({{"layers.0.self_attn.k_proj.k_scal", {0.1f}}}), HasSubstr("k_scal'")) << "no tensor is dropped";
  EXPECT_THAT(error_of({{"layers.0.self_attn.k_proj.k_scale", {0.1f}}, {"layers.0.self_attn.attn.k_scale", {0.2f}}}),
              HasSubstr("layer 0 has two K scales that differ"));
  EXPECT_EQ(error_of({{"layers.0.self_attn.k_proj.k_scale", {0.1f}}, {"layers.0.self_attn.attn.k_scale", {0.1f}}}),
            "accepted");
}

TEST(CheckpointKv, ReadsTheDeclaredSchemeFromEveryPlace) {
  const auto scheme = [](const std::string& config, const std::string& beside = "") {
    const auto kv = read({}, config, beside);
    EXPECT_TRUE(kv) << kv.error().message();
    return kv ? kv->quantisation.kv_format : std::nullopt;
  };
  EXPECT_EQ(scheme("{}"), std::nullopt);
  EXPECT_EQ(scheme(kFp8), KvFormat::kE4m3);
  EXPECT_EQ(scheme("{}", R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})"), KvFormat::kE4m3);
  EXPECT_EQ(scheme("{}", R"({"quantization": {"quant_algo": "nvfp4", "kv_cache_quant_algo": "nvfp4"}})"),
            KvFormat::kNvfp4);
  EXPECT_EQ(scheme("{}", R"({"quantization": {"quant_algo": "NVFP4"}, "kv_cache_quant_algo": "FP8"})"),
            KvFormat::kE4m3);
  EXPECT_EQ(scheme("{}", R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null}})"), std::nullopt);
  EXPECT_EQ(scheme(R"({"quantization_config": {"quantization": {"kv_cache_quant_algo": "NVFP4"}}})"), KvFormat::kNvfp4);
  EXPECT_EQ(scheme(R"({"quantization_config": {"quant_method": "modelopt_fp4",
      "kv_cache_scheme": {"dynamic": false, "num_bits": 4, "type": "float"}}})"),
            KvFormat::kNvfp4);
  EXPECT_EQ(scheme(R"({"quantization_config": {"quant_method": "compressed-tensors",
      "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false}}})"),
            KvFormat::kE4m3);
  EXPECT_EQ(scheme(R"({"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": "fp8"}})"),
            KvFormat::kE4m3);
}

TEST(CheckpointKv, KnowsWhetherActivationsAreMeantToBeFp8) {
  const auto says = [](const std::string& quantisation) {
    const auto kv = read({}, fmt::format(R"({{"quantization_config": {}}})", quantisation));
    EXPECT_TRUE(kv) << kv.error().message();
    return kv && kv->quantisation.fp8_activations;
  };
  EXPECT_TRUE(says(R"({"quant_method": "modelopt", "quant_algo": "FP8"})"));
  EXPECT_TRUE(says(R"({"quant_method": "modelopt", "quant_algo": "fp8_per_channel_per_token"})"));
  EXPECT_FALSE(says(R"({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"})"));
  EXPECT_FALSE(says(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})"));
  EXPECT_TRUE(says(R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})"));
  const auto mixed = [&](const std::string& algorithm) {
    return says(fmt::format(R"({{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {{
        "model.layers.0.mlp.up_proj": {{"quant_algo": "NVFP4"}},
        "model.layers.0.self_attn.q_proj": {{"quant_algo": "{}"}}}}}})",
                            algorithm));
  };
  EXPECT_TRUE(mixed("FP8"));
  EXPECT_FALSE(mixed("FP8_PB_WO"));
  EXPECT_FALSE(mixed("NVFP4"));
  const auto compressed = [&](const std::string& activations) {
    return says(fmt::format(R"({{"quant_method": "compressed-tensors", "config_groups": {{"group_0": {{
        "weights": {{"num_bits": 8, "type": "float"}}, "input_activations": {}}}}}}})",
                            activations));
  };
  EXPECT_TRUE(compressed(R"({"num_bits": 8, "type": "float", "dynamic": true})"));
  EXPECT_FALSE(compressed(R"({"num_bits": 8, "type": "int", "dynamic": true})"));
  EXPECT_FALSE(compressed("null"));
}

TEST(CheckpointKv, RefusesSchemesAndMethodsByName) {
  EXPECT_THAT(error_of({}, R"({"quantization_config": {"quant_method": "gptq"}})"), HasSubstr("quant_method 'gptq'"));
  EXPECT_THAT(error_of({}, R"({"quantization_config": {"quant_algo": "INT4_AWQ"}})"),
              HasSubstr("quant_algo 'INT4_AWQ'"));
  EXPECT_THAT(error_of({}, R"({"quantization_config": {"kv_cache_quant_algo": 8}})"),
              HasSubstr("'kv_cache_quant_algo' is 8"));
  EXPECT_THAT(error_of({}, R"({"quantization_config": {"kv_cache_quant_algo": "FP8"}})",
                       R"({"quantization": {"kv_cache_quant_algo": "NVFP4"}})"),
              AllOf(HasSubstr("declares a KV cache of e4m3"), HasSubstr("one of nvfp4")));
  const auto int8 = read({}, R"({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}})").value();
  const auto spec = attn::parse_kv_spec("auto").value();
  EXPECT_THAT(resolve_checkpoint_spec(spec, model(), &int8, false).error().message(),
              HasSubstr("8 bits of type 'int'"));
  EXPECT_TRUE(resolve_checkpoint_spec(attn::parse_kv_spec("bf16").value(), model(), &int8, false));
}

TEST(CheckpointKv, MapsMixedPrecisionToLayers) {
  const std::string mixed = R"({"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8",
      "quantized_layers": {"model.layers.1.self_attn": {"kv_cache_quant_algo": "NVFP4"},
                           "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}}}})";
  const auto kv = read({}, "{}", mixed).value();
  EXPECT_EQ(kv.quantisation.kv_format, KvFormat::kE4m3);
  EXPECT_THAT(kv.quantisation.layer_kv_formats, ElementsAre(std::nullopt, KvFormat::kNvfp4));
  EXPECT_THAT(error_of({}, "{}", R"({"quantization": {"quantized_layers": {"model.layers.9.self_attn":
      {"kv_cache_quant_algo": "NVFP4"}}}})"),
              HasSubstr("is none of the model's 2 layers"));
}

TEST(CheckpointKv, AutoIsTheDeclaredSchemeWithoutConditioning) {
  const Scales scales = {{"layers.{}.self_attn.k_proj.k_scale", {0.02f}},
                         {"layers.{}.self_attn.v_proj.v_scale", {0.5f}}};
  const std::string nvfp4 = R"({"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}})";
  const auto resolved = [&](const char* text, const CheckpointKv& kv, bool profile_asked) {
    return resolve_checkpoint_spec(attn::parse_kv_spec(text).value(), model(), &kv, profile_asked).value().to_string();
  };
  const auto kv = read(scales, nvfp4).value();
  EXPECT_EQ(kv.scales->format, KvFormat::kNvfp4);
  EXPECT_EQ(resolved("auto", kv, false), "nvfp4:policy=search:cond=none:edges=16,32");
  EXPECT_EQ(resolved("auto", kv, true), "nvfp4:policy=search:cond=full:edges=16,32") << "a profile is asked for";
  EXPECT_EQ(resolved("nvfp4", kv, false), "nvfp4:policy=search:cond=none:edges=16,32");
  EXPECT_EQ(resolved("nvfp4:cond=full", kv, false), "nvfp4:policy=search:cond=full:edges=16,32");
  EXPECT_EQ(resolved("bf16", kv, false), "bf16");
  EXPECT_EQ(resolved("auto", read(scales).value(), false), "e4m3:cond=none:edges=16,32");
  EXPECT_EQ(resolved("auto", read({}, "{}").value(), false), "bf16");
  EXPECT_EQ(resolved("auto", read({}, nvfp4).value(), false), "nvfp4:policy=search:cond=full:edges=16,32")
      << "without scales a profile takes their place";
}

TEST(CheckpointKv, RefusesE5m2WithAQuantisedCheckpoint) {
  const auto kv = read({}).value();
  const auto check = [&](const char* text) {
    return check_checkpoint_spec(attn::parse_kv_spec(text).value(), &kv).message();
  };
  EXPECT_THAT(check("e5m2"), HasSubstr("an e5m2 cache does not go with a quantised checkpoint"));
  EXPECT_THAT(check("k=e4m3/v=e5m2"), HasSubstr("e5m2"));
  EXPECT_EQ(check("e4m3"), "");
  EXPECT_TRUE(check_checkpoint_spec(attn::parse_kv_spec("e5m2").value(), nullptr).ok());
}

TEST(CheckpointKv, ScalesBetweenFormatsKeepTheirHeadroom) {
  EXPECT_EQ(scale_between(KvFormat::kE4m3, KvFormat::kE4m3, 0.02f), 0.02f);
  EXPECT_FLOAT_EQ(scale_between(KvFormat::kE4m3, KvFormat::kNvfp4, 0.06f), 0.01f);
  EXPECT_FLOAT_EQ(scale_between(KvFormat::kNvfp4, KvFormat::kE4m3, 0.01f), 0.06f);
  EXPECT_EQ(scale_between(KvFormat::kE4m3, KvFormat::kBf16, 0.06f), 1.0f) << "16-bit caches have no scales";
}

}  // namespace
}  // namespace kvant::engine
