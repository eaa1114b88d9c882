#include "engine/models/folder_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/models/folder_rope.h"

namespace kvant::engine {
namespace {

constexpr float kClampedSwishSlope = 1.702f;

Status wrong_value(const JsonObject& config, std::string_view key, std::string_view value, std::string_view needed) {
  return {StatusCode::kUnsupported,
          fmt::format("{}: {} '{}' is not supported; supported: {}", config.name(), key, value, needed)};
}

Status read_heads(const JsonObject& config, const Family& family, int32_t hidden_size, LayerConfig& layer) {
  KVANT_ASSIGN_OR_RETURN(layer.num_q_heads, config.size("num_attention_heads"));
  KVANT_ASSIGN_OR_RETURN(layer.num_kv_heads, config.size_or("num_key_value_heads", layer.num_q_heads));
  if (layer.num_q_heads % layer.num_kv_heads != 0)
    return {StatusCode::kDataLoss, fmt::format("{}: {} query heads cannot share {} KV heads evenly", config.name(),
                                               layer.num_q_heads, layer.num_kv_heads)};
  const bool is_implied = !config.contains("head_dim") && family.head_dim == 0;
  if (is_implied && hidden_size % layer.num_q_heads != 0)
    return {StatusCode::kDataLoss,
            fmt::format("{}: hidden_size {} is not a multiple of {} heads and head_dim is missing", config.name(),
                        hidden_size, layer.num_q_heads)};
  KVANT_ASSIGN_OR_RETURN(
      layer.head_dim_k,
      config.size_or("head_dim", family.head_dim > 0 ? family.head_dim : hidden_size / layer.num_q_heads));
  layer.head_dim_v = layer.head_dim_k;
  KVANT_ASSIGN_OR_RETURN(const float scaled_by,
                         config.positive_or("query_pre_attn_scalar", static_cast<float>(layer.head_dim_k)));
  layer.softmax_scale = 1.0f / std::sqrt(scaled_by);
  return {};
}

Status read_activation(const JsonObject& config, const Family& family, LayerConfig& layer) {
  const char* key = config.contains("hidden_activation") ? "hidden_activation" : "hidden_act";
  const bool gelu = family.activation == Activation::kGeluTanh;
  KVANT_ASSIGN_OR_RETURN(const std::string name, config.text_or(key, gelu ? "gelu_pytorch_tanh" : "silu"));
  if (name != "silu" && name != "swish" && name != "gelu_pytorch_tanh")
    return wrong_value(config, key, name, "silu, gelu_pytorch_tanh");
  layer.activation = name == "gelu_pytorch_tanh" ? Activation::kGeluTanh : Activation::kSilu;
  if (family.activation != Activation::kClampedSwish) return {};
  layer.activation = Activation::kClampedSwish;
  KVANT_ASSIGN_OR_RETURN(layer.activation_limit, config.positive_or("swiglu_limit", kClampedSwishLimit));
  KVANT_ASSIGN_OR_RETURN(const float slope, config.positive_or("swiglu_alpha", kClampedSwishSlope));
  if (slope != kClampedSwishSlope) return wrong_value(config, "swiglu_alpha", fmt::format("{}", slope), "1.702");
  return {};
}

Status read_biases(const JsonObject& config, const Family& family, LayerConfig& layer) {
  KVANT_ASSIGN_OR_RETURN(const bool configured, config.boolean_or("attention_bias", false));
  switch (family.bias) {
    case AttentionBias::kConfigured: layer.qkv_bias = layer.output_bias = configured; break;
    case AttentionBias::kQkv: layer.qkv_bias = true; break;
    case AttentionBias::kAll: layer.qkv_bias = layer.output_bias = true; break;
  }
  KVANT_ASSIGN_OR_RETURN(const bool mlp_bias, config.boolean_or("mlp_bias", false));
  if (mlp_bias) return wrong_value(config, "mlp_bias", "true", "false");
  return {};
}

Result<ExpertsConfig> read_experts(const JsonObject& config, const Family& family) {
  ExpertsConfig experts;
  const char* count = config.contains("num_local_experts") ? "num_local_experts" : "num_experts";
  if (!config.contains(count)) return experts;
  KVANT_ASSIGN_OR_FAIL(experts.count, config.size(count));
  const char* used = config.contains("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  KVANT_ASSIGN_OR_FAIL(experts.used, config.size(used));
  if (experts.used > experts.count)
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: {} is {}; there are {} experts", config.name(), used, experts.used, experts.count));
  const bool is_gpt_oss = family.expert_files == ExpertFiles::kGptOss;
  experts.biases = is_gpt_oss;
  KVANT_ASSIGN_OR_FAIL(experts.normalised, config.boolean_or("norm_topk_prob", is_gpt_oss));
  return experts;
}

/// Which layers have experts: all but those that the file names, and every `decoder_sparse_step`-th alone.
Result<std::vector<bool>> read_sparse_layers(const JsonObject& config, int32_t num_layers) {
  std::vector<bool> sparse(static_cast<size_t>(num_layers));
  KVANT_ASSIGN_OR_FAIL(const int32_t step, config.size_or("decoder_sparse_step", 1));
  for (int32_t layer = 0; layer < num_layers; ++layer) sparse[static_cast<size_t>(layer)] = (layer + 1) % step == 0;
  if (!config.contains("mlp_only_layers")) return sparse;
  KVANT_ASSIGN_OR_FAIL(const std::vector<double> dense, config.numbers("mlp_only_layers"));
  for (const double layer : dense)
    if (layer >= 0.0 && layer < num_layers) sparse[static_cast<size_t>(layer)] = false;
  return sparse;
}

Result<std::vector<bool>> read_rope_layers(const JsonObject& config, const Family& family, int32_t num_layers) {
  std::vector<bool> turned(static_cast<size_t>(num_layers), true);
  if (family.rope_period == 0) return turned;
  if (config.contains("no_rope_layers")) {
    // 1 where there is RoPE, the key's name notwithstanding.
    KVANT_ASSIGN_OR_FAIL(const std::vector<double> flags, config.numbers("no_rope_layers"));
    if (std::ssize(flags) < num_layers)
      return failure(StatusCode::kDataLoss, fmt::format("{}: no_rope_layers has {} entries for {} layers",
                                                        config.name(), flags.size(), num_layers));
    for (size_t i = 0; i < turned.size(); ++i) turned[i] = flags[i] != 0.0;
    return turned;
  }
  KVANT_ASSIGN_OR_FAIL(const int32_t period, config.size_or("no_rope_layer_interval", family.rope_period));
  for (int32_t i = 0; i < num_layers; ++i) turned[static_cast<size_t>(i)] = (i + 1) % period != 0;
  return turned;
}

Result<std::vector<bool>> read_layer_types(const JsonObject& config, int32_t num_layers) {
  KVANT_ASSIGN_OR_FAIL(const std::vector<std::string> types, config.texts("layer_types"));
  if (std::ssize(types) < num_layers)
    return failure(StatusCode::kDataLoss, fmt::format("{}: layer_types has {} entries for {} layers", config.name(),
                                                      types.size(), num_layers));
  std::vector<bool> windowed(static_cast<size_t>(num_layers));
  for (size_t i = 0; i < windowed.size(); ++i) {
    windowed[i] = types[i] == "sliding_attention";
    if (!windowed[i] && types[i] != "full_attention")
      return failure(wrong_value(config, "layer_types", types[i], "full_attention, sliding_attention"));
  }
  return windowed;
}

/// The window of each layer; 0 = none.
Result<std::vector<int32_t>> read_windows(const JsonObject& config, const Family& family, int32_t num_layers) {
  std::vector<int32_t> windows(static_cast<size_t>(num_layers));
  KVANT_ASSIGN_OR_FAIL(const bool use, config.boolean_or("use_sliding_window", !family.window_if_told));
  KVANT_ASSIGN_OR_FAIL(const int32_t window, config.size_or("sliding_window", 0));
  if (config.contains("layer_types")) {
    KVANT_ASSIGN_OR_FAIL(const std::vector<bool> windowed, read_layer_types(config, num_layers));
    const bool any = std::find(windowed.begin(), windowed.end(), true) != windowed.end();
    if (any && window == 0)
      return failure(
          StatusCode::kDataLoss,
          fmt::format("{}: layer_types names sliding_attention but sliding_window is missing", config.name()));
    for (size_t i = 0; i < windows.size(); ++i) windows[i] = windowed[i] ? window : 0;
    return windows;
  }
  if (!use || window == 0) return windows;
  Family pattern = family;
  KVANT_ASSIGN_OR_FAIL(pattern.window_period, config.size_or("sliding_window_pattern", family.window_period));
  // The first layers of Qwen2 see everything.
  int32_t first = 0;
  if (family.window_if_told && config.contains("max_window_layers")) {
    KVANT_ASSIGN_OR_FAIL(const int64_t layers, config.integer("max_window_layers", 0, int64_t{1} << 24));
    first = static_cast<int32_t>(layers);
  }
  for (int32_t i = first; i < num_layers; ++i) windows[static_cast<size_t>(i)] = has_window(pattern, i) ? window : 0;
  return windows;
}

Result<DType> read_kv_dtype(const JsonObject& config) {
  const char* key = config.contains("dtype") ? "dtype" : "torch_dtype";
  KVANT_ASSIGN_OR_FAIL(const auto dtype, config.text_or(key, "bfloat16"));
  return dtype == "float16" ? DType::kF16 : DType::kBf16;
}

/// What all layers have in common.
Result<LayerConfig> read_layer(const JsonObject& config, const Family& family, int32_t hidden_size) {
  LayerConfig layer;
  KVANT_FAIL_IF_ERROR(read_heads(config, family, hidden_size, layer));
  KVANT_FAIL_IF_ERROR(read_activation(config, family, layer));
  KVANT_FAIL_IF_ERROR(read_biases(config, family, layer));
  KVANT_ASSIGN_OR_FAIL(layer.soft_cap, config.positive_or("attn_logit_softcapping", family.score_cap));
  KVANT_ASSIGN_OR_FAIL(layer.ffn_size, config.size("intermediate_size"));
  layer.qk_norm = family.qk_norm;
  layer.post_norms = family.post_norms;
  layer.sinks = family.sinks;
  return layer;
}

}  // namespace

Result<const Family*> read_folder_family(const JsonObject& config) {
  KVANT_ASSIGN_OR_FAIL(const std::vector<std::string> names, config.texts("architectures"));
  for (const std::string& name : names)
    if (const Family* family = find_folder_family(name)) return family;
  return failure(wrong_value(config, "architecture", names.empty() ? "" : names.front(), folder_family_names()));
}

Result<ModelConfig> read_folder_config(const JsonObject& json, const Family& family) {
  ModelConfig config;
  config.architecture = family.name;
  KVANT_ASSIGN_OR_FAIL(config.vocabulary_size, json.size("vocab_size"));
  KVANT_ASSIGN_OR_FAIL(config.hidden_size, json.size("hidden_size"));
  KVANT_ASSIGN_OR_FAIL(config.context_limit, json.size("max_position_embeddings"));
  KVANT_ASSIGN_OR_FAIL(config.norm_epsilon, json.positive_or("rms_norm_eps", 1e-6f));
  KVANT_ASSIGN_OR_FAIL(config.final_soft_cap, json.positive_or("final_logit_softcapping", family.final_cap));
  KVANT_ASSIGN_OR_FAIL(config.kv_dtype, read_kv_dtype(json));
  if (family.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  KVANT_ASSIGN_OR_FAIL(const int32_t num_layers, json.size("num_hidden_layers"));
  KVANT_ASSIGN_OR_FAIL(const LayerConfig common, read_layer(json, family, config.hidden_size));
  KVANT_ASSIGN_OR_FAIL(const FolderRopes ropes, read_folder_ropes(json, family, common.head_dim_k));
  KVANT_ASSIGN_OR_FAIL(const std::vector<int32_t> windows, read_windows(json, family, num_layers));
  KVANT_ASSIGN_OR_FAIL(const std::vector<bool> turned, read_rope_layers(json, family, num_layers));
  KVANT_ASSIGN_OR_FAIL(const std::vector<bool> sparse, read_sparse_layers(json, num_layers));
  KVANT_ASSIGN_OR_FAIL(const ExpertsConfig experts, read_experts(json, family));
  KVANT_ASSIGN_OR_FAIL(const int32_t expert_size, json.size_or("moe_intermediate_size", common.ffn_size));
  for (size_t i = 0; i < windows.size(); ++i) {
    LayerConfig layer = common;
    layer.window = windows[i];
    layer.rope = windows[i] > 0 ? ropes.window : ropes.full;
    if (!turned[i]) layer.rope = {};
    if (experts.count > 0 && sparse[i]) {
      layer.experts = experts;
      layer.ffn_size = expert_size;
    }
    config.layers.push_back(std::move(layer));
  }
  return config;
}

}  // namespace kvant::engine
