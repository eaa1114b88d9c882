#include "engine/models/gguf_config.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace kvant::engine {
namespace {

/// Sizes above this are a broken file, and keep every product of two of them within int64.
constexpr int64_t kMaxSize = int64_t{1} << 24;

/// Reads the keys of an architecture, such as "llama.*".
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), architecture_(architecture) {}

  Result<int32_t> size(std::string_view key) const {
    KVANT_ASSIGN_OR_FAIL(const int64_t value, file_.get_int(full(key)));
    if (value < 1 || value > kMaxSize) {
      return failure(StatusCode::kDataLoss,
                     fmt::format("{}: {} is {}; 1 to {} is needed", file_.name(), full(key), value, kMaxSize));
    }
    return static_cast<int32_t>(value);
  }
  Result<int32_t> size_or(std::string_view key, int32_t fallback) const {
    if (!contains(key)) return fallback;
    return size(key);
  }
  Result<float> number(std::string_view key) const {
    KVANT_ASSIGN_OR_FAIL(const double value, file_.get_float(full(key)));
    if (!(value > 0.0) || !(value < static_cast<double>(std::numeric_limits<float>::max()))) {
      return failure(StatusCode::kDataLoss,
                     fmt::format("{}: {} is {}; a positive number is needed", file_.name(), full(key), value));
    }
    return static_cast<float>(value);
  }
  Result<float> number_or(std::string_view key, float fallback) const {
    if (!contains(key)) return fallback;
    return number(key);
  }
  Result<std::string> text(std::string_view key) const { return file_.get_string(full(key)); }
  bool contains(std::string_view key) const { return file_.contains(full(key)); }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }
  const std::string& file() const { return file_.name(); }

 private:
  const GgufFile& file_;
  std::string_view architecture_;
};

Result<RopeScaling> read_rope_scaling(const Keys& keys) {
  RopeScaling scaling;
  if (!keys.contains("rope.scaling.type") && keys.contains("rope.scale_linear")) {
    scaling.kind = RopeScalingKind::kLinear;
    KVANT_ASSIGN_OR_FAIL(scaling.factor, keys.number("rope.scale_linear"));
    return scaling;
  }
  if (!keys.contains("rope.scaling.type")) return scaling;
  KVANT_ASSIGN_OR_FAIL(const std::string type, keys.text("rope.scaling.type"));
  if (type == "none") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
    KVANT_ASSIGN_OR_FAIL(scaling.factor, keys.number("rope.scaling.factor"));
    return scaling;
  }
  if (type == "yarn") {
    scaling.kind = RopeScalingKind::kYarn;
    KVANT_ASSIGN_OR_FAIL(scaling.factor, keys.number("rope.scaling.factor"));
    KVANT_ASSIGN_OR_FAIL(scaling.original_context, keys.size("rope.scaling.original_context_length"));
    KVANT_ASSIGN_OR_FAIL(scaling.fast_turns, keys.number_or("rope.scaling.yarn_beta_fast", scaling.fast_turns));
    KVANT_ASSIGN_OR_FAIL(scaling.slow_turns, keys.number_or("rope.scaling.yarn_beta_slow", scaling.slow_turns));
    KVANT_ASSIGN_OR_FAIL(const float attention, keys.number_or("rope.scaling.attn_factor", 1.0f));
    scaling.attention_factor = attention * yarn_attention_factor(scaling.factor);
    return scaling;
  }
  return failure(StatusCode::kUnsupported,
                 fmt::format("{}: RoPE scaling '{}' is not supported; supported: none, linear, yarn, and frequency "
                             "factors in rope_freqs.weight (llama3)",
                             keys.file(), type));
}

Result<RopeConfig> read_rope(const Keys& keys, const GgufWeights& weights, const Family& family, int32_t head_dim) {
  RopeConfig rope;
  KVANT_ASSIGN_OR_FAIL(rope.dim, keys.size_or("rope.dimension_count", head_dim));
  if (rope.dim > head_dim || rope.dim % 2 != 0) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: {} is {}; an even number up to the head size {} is needed", keys.file(),
                               keys.full("rope.dimension_count"), rope.dim, head_dim));
  }
  KVANT_ASSIGN_OR_FAIL(rope.theta, keys.number_or("rope.freq_base", family.theta));
  KVANT_ASSIGN_OR_FAIL(rope.scaling, read_rope_scaling(keys));
  rope.scaling.whole_pairs = family.whole_yarn_pairs;
  if (!weights.contains("rope_freqs.weight")) return rope;
  if (rope.scaling.kind != RopeScalingKind::kNone) {
    return failure(StatusCode::kUnsupported,
                   fmt::format("{}: both RoPE scaling '{}' and rope_freqs.weight are given; at most one can be used",
                               keys.file(), to_string(rope.scaling.kind)));
  }
  KVANT_ASSIGN_OR_FAIL(const WeightView factors, weights.vector("rope_freqs.weight", rope.dim / 2));
  rope.frequency_factors.resize(static_cast<size_t>(rope.dim / 2));
  factors.read(0, 1, rope.frequency_factors.data());
  for (const float factor : rope.frequency_factors) {
    if (!(factor > 0.0f))
      return failure(StatusCode::kDataLoss,
                     fmt::format("{}: rope_freqs.weight holds {}; positive factors are needed", keys.file(), factor));
  }
  return rope;
}

/// RoPE of layers with a window: plain, where the family has one of its own.
Result<RopeConfig> read_window_rope(const Keys& keys, const Family& family, const RopeConfig& rope) {
  if (family.window_theta == 0.0f) return rope;
  RopeConfig out{.dim = rope.dim, .scaling = {}, .frequency_factors = {}};
  KVANT_ASSIGN_OR_FAIL(out.theta, keys.number_or("rope.freq_base_swa", family.window_theta));
  return out;
}

Result<ExpertsConfig> read_experts(const Keys& keys) {
  ExpertsConfig experts;
  if (!keys.contains("expert_count")) return experts;
  KVANT_ASSIGN_OR_FAIL(experts.count, keys.size("expert_count"));
  KVANT_ASSIGN_OR_FAIL(experts.used, keys.size("expert_used_count"));
  if (experts.used > experts.count) {
    return failure(StatusCode::kDataLoss, fmt::format("{}: {} is {}; there are {} experts", keys.file(),
                                                      keys.full("expert_used_count"), experts.used, experts.count));
  }
  return experts;
}

/// What all layers have in common.
Result<LayerConfig> read_layer(const Keys& keys, const Family& family, int32_t hidden_size, int32_t num_layers) {
  LayerConfig layer;
  KVANT_ASSIGN_OR_FAIL(layer.num_q_heads, keys.size("attention.head_count"));
  KVANT_ASSIGN_OR_FAIL(layer.num_kv_heads, keys.size_or("attention.head_count_kv", layer.num_q_heads));
  if (layer.num_q_heads % layer.num_kv_heads != 0) {
    return failure(StatusCode::kDataLoss, fmt::format("{}: {} query heads cannot share {} KV heads evenly", keys.file(),
                                                      layer.num_q_heads, layer.num_kv_heads));
  }
  if (!keys.contains("attention.key_length") && hidden_size % layer.num_q_heads != 0) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: embedding length {} is not a multiple of {} heads and {} is missing", keys.file(),
                               hidden_size, layer.num_q_heads, keys.full("attention.key_length")));
  }
  KVANT_ASSIGN_OR_FAIL(layer.head_dim_k, keys.size_or("attention.key_length", hidden_size / layer.num_q_heads));
  KVANT_ASSIGN_OR_FAIL(layer.head_dim_v, keys.size_or("attention.value_length", layer.head_dim_k));
  const int32_t scaled_by = num_layers == family.wide_scale_layers ? hidden_size / layer.num_q_heads : layer.head_dim_k;
  KVANT_ASSIGN_OR_FAIL(layer.softmax_scale,
                       keys.number_or("attention.scale", 1.0f / std::sqrt(static_cast<float>(scaled_by))));
  KVANT_ASSIGN_OR_FAIL(layer.soft_cap, keys.number_or("attn_logit_softcapping", family.score_cap));
  layer.qk_norm = family.qk_norm;
  layer.post_norms = family.post_norms;
  layer.sinks = family.sinks;
  KVANT_ASSIGN_OR_FAIL(layer.experts, read_experts(keys));
  if (layer.experts.count > 0) {
    KVANT_ASSIGN_OR_FAIL(layer.ffn_size, keys.size("expert_feed_forward_length"));
  } else {
    KVANT_ASSIGN_OR_FAIL(layer.ffn_size, keys.size("feed_forward_length"));
  }
  layer.activation = family.activation;
  if (layer.activation == Activation::kClampedSwish) layer.activation_limit = kClampedSwishLimit;
  return layer;
}

}  // namespace

Result<ModelConfig> read_gguf_config(const GgufFile& file, const GgufWeights& weights, const Family& family) {
  const Keys keys(file, family.name);
  ModelConfig config;
  config.architecture = family.name;
  config.name = file.get_string("general.name").value_or(config.architecture);
  KVANT_ASSIGN_OR_FAIL(config.hidden_size, keys.size("embedding_length"));
  KVANT_ASSIGN_OR_FAIL(config.context_limit, keys.size("context_length"));
  KVANT_ASSIGN_OR_FAIL(config.norm_epsilon, keys.number("attention.layer_norm_rms_epsilon"));
  if (family.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  KVANT_ASSIGN_OR_FAIL(config.final_soft_cap, keys.number_or("final_logit_softcapping", family.final_cap));
  KVANT_ASSIGN_OR_FAIL(const int32_t num_layers, keys.size("block_count"));
  KVANT_ASSIGN_OR_FAIL(LayerConfig layer, read_layer(keys, family, config.hidden_size, num_layers));
  KVANT_ASSIGN_OR_FAIL(const RopeConfig rope, read_rope(keys, weights, family, layer.head_dim_k));
  KVANT_ASSIGN_OR_FAIL(const RopeConfig window_rope, read_window_rope(keys, family, rope));
  KVANT_ASSIGN_OR_FAIL(const int32_t window, keys.size_or("attention.sliding_window", 0));
  for (int32_t index = 0; index < num_layers; ++index) {
    const bool windowed = window > 0 && has_window(family, index);
    layer.window = windowed ? window : 0;
    layer.rope = windowed ? window_rope : rope;
    if (!has_rope(family, index)) layer.rope = {};
    config.layers.push_back(layer);
  }
  return config;
}

}  // namespace kvant::engine
