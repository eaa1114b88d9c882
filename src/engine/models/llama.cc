#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "engine/loader/gguf.h"
#include "engine/models/gguf_weights.h"
#include "engine/models/registry.h"

namespace kvant::engine {
namespace {

/// Sizes above this are a broken file, and keep every product of two of them within int64.
constexpr int64_t kMaxSize = int64_t{1} << 24;

/// Reads "llama.*" keys.
class Keys {
 public:
  explicit Keys(const GgufFile& file) : file_(file) {}

  Result<int32_t> size(std::string_view key) const {
    KVANT_ASSIGN_OR_FAIL(const int64_t value, file_.get_int(full(key)));
    if (value < 1 || value > kMaxSize) {
      return failure(StatusCode::kDataLoss,
                     fmt::format("{}: {} is {}; 1 to {} is needed", file_.name(), full(key), value, kMaxSize));
    }
    return static_cast<int32_t>(value);
  }
  Result<int32_t> size_or(std::string_view key, int32_t fallback) const {
    if (!file_.contains(full(key))) return fallback;
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
    if (!file_.contains(full(key))) return fallback;
    return number(key);
  }
  static std::string full(std::string_view key) { return fmt::format("llama.{}", key); }

 private:
  const GgufFile& file_;
};

Result<RopeScaling> read_rope_scaling(const GgufFile& file, const Keys& keys) {
  RopeScaling scaling;
  std::string type = "none";
  if (file.contains(Keys::full("rope.scaling.type"))) {
    KVANT_ASSIGN_OR_FAIL(type, file.get_string(Keys::full("rope.scaling.type")));
  } else if (file.contains(Keys::full("rope.scale_linear"))) {
    scaling.kind = RopeScalingKind::kLinear;
    KVANT_ASSIGN_OR_FAIL(scaling.factor, keys.number("rope.scale_linear"));
    return scaling;
  }
  if (type == "none") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
    KVANT_ASSIGN_OR_FAIL(scaling.factor, keys.number("rope.scaling.factor"));
    return scaling;
  }
  return failure(StatusCode::kUnsupported,
                 fmt::format("{}: RoPE scaling '{}' is not supported; supported: none, linear, and frequency factors "
                             "in rope_freqs.weight (llama3)",
                             file.name(), type));
}

Result<RopeConfig> read_rope(const GgufFile& file, const Keys& keys, const GgufWeights& weights, int32_t head_dim) {
  RopeConfig rope;
  KVANT_ASSIGN_OR_FAIL(rope.dim, keys.size_or("rope.dimension_count", head_dim));
  if (rope.dim > head_dim || rope.dim % 2 != 0) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: llama.rope.dimension_count is {}; an even number up to the head size {} is needed",
                               file.name(), rope.dim, head_dim));
  }
  KVANT_ASSIGN_OR_FAIL(rope.theta, keys.number_or("rope.freq_base", 10000.0f));
  KVANT_ASSIGN_OR_FAIL(rope.scaling, read_rope_scaling(file, keys));
  if (weights.contains("rope_freqs.weight")) {
    if (rope.scaling.kind != RopeScalingKind::kNone) {
      return failure(StatusCode::kUnsupported,
                     fmt::format("{}: both RoPE scaling '{}' and rope_freqs.weight are given; at most one can be used",
                                 file.name(), to_string(rope.scaling.kind)));
    }
    KVANT_ASSIGN_OR_FAIL(const WeightView factors, weights.vector("rope_freqs.weight", rope.dim / 2));
    rope.frequency_factors.resize(static_cast<size_t>(rope.dim / 2));
    factors.read(0, 1, rope.frequency_factors.data());
    for (const float factor : rope.frequency_factors) {
      if (!(factor > 0.0f))
        return failure(StatusCode::kDataLoss,
                       fmt::format("{}: rope_freqs.weight holds {}; positive factors are needed", file.name(), factor));
    }
  }
  return rope;
}

Result<LayerConfig> read_layer_config(const GgufFile& file, const Keys& keys, const GgufWeights& weights,
                                      int32_t hidden_size) {
  LayerConfig layer;
  KVANT_ASSIGN_OR_FAIL(layer.num_q_heads, keys.size("attention.head_count"));
  KVANT_ASSIGN_OR_FAIL(layer.num_kv_heads, keys.size_or("attention.head_count_kv", layer.num_q_heads));
  if (layer.num_q_heads % layer.num_kv_heads != 0) {
    return failure(StatusCode::kDataLoss, fmt::format("{}: {} query heads cannot share {} KV heads evenly", file.name(),
                                                      layer.num_q_heads, layer.num_kv_heads));
  }
  if (!file.contains(Keys::full("attention.key_length")) && hidden_size % layer.num_q_heads != 0) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: embedding length {} is not a multiple of {} heads and llama.attention.key_length "
                               "is missing",
                               file.name(), hidden_size, layer.num_q_heads));
  }
  KVANT_ASSIGN_OR_FAIL(layer.head_dim_k, keys.size_or("attention.key_length", hidden_size / layer.num_q_heads));
  KVANT_ASSIGN_OR_FAIL(layer.head_dim_v, keys.size_or("attention.value_length", layer.head_dim_k));
  KVANT_ASSIGN_OR_FAIL(layer.ffn_size, keys.size("feed_forward_length"));
  layer.softmax_scale = 1.0f / std::sqrt(static_cast<float>(layer.head_dim_k));
  KVANT_ASSIGN_OR_FAIL(layer.rope, read_rope(file, keys, weights, layer.head_dim_k));
  return layer;
}

/// A file may hold biases that its family does not define: running without them would be silently wrong.
Status refuse_unused_biases(const GgufFile& file, const GgufWeights& weights, const std::string& prefix) {
  for (const char* name : {"attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias", "ffn_gate_inp.weight"})
    if (weights.contains(prefix + name))
      return {StatusCode::kUnsupported,
              fmt::format("{}: tensor '{}{}' is not supported for llama models", file.name(), prefix, name)};
  return {};
}

Result<LayerWeights> read_layer(const GgufFile& file, const GgufWeights& weights, int32_t index, int32_t hidden,
                                LayerConfig& layer) {
  const std::string prefix = fmt::format("blk.{}.", index);
  KVANT_FAIL_IF_ERROR(refuse_unused_biases(file, weights, prefix));
  const int64_t q_rows = int64_t{layer.num_q_heads} * layer.head_dim_k;
  const int64_t k_rows = int64_t{layer.num_kv_heads} * layer.head_dim_k;
  const int64_t v_rows = int64_t{layer.num_kv_heads} * layer.head_dim_v;
  // Files of this family store q and k rows as interleaved RoPE pairs.
  const auto reordered = [&](WeightView view) {
    return halves_from_interleaved(std::move(view), layer.head_dim_k, layer.rope.dim);
  };
  LayerWeights out;
  KVANT_ASSIGN_OR_FAIL(out.attention_norm, weights.vector(prefix + "attn_norm.weight", hidden));
  KVANT_ASSIGN_OR_FAIL(out.q, weights.matrix(prefix + "attn_q.weight", q_rows, hidden));
  KVANT_ASSIGN_OR_FAIL(out.k, weights.matrix(prefix + "attn_k.weight", k_rows, hidden));
  KVANT_ASSIGN_OR_FAIL(out.v, weights.matrix(prefix + "attn_v.weight", v_rows, hidden));
  out.q = reordered(std::move(out.q));
  out.k = reordered(std::move(out.k));
  layer.qkv_bias = weights.contains(prefix + "attn_q.bias");
  if (layer.qkv_bias) {
    KVANT_ASSIGN_OR_FAIL(out.q_bias, weights.vector(prefix + "attn_q.bias", q_rows));
    KVANT_ASSIGN_OR_FAIL(out.k_bias, weights.vector(prefix + "attn_k.bias", k_rows));
    KVANT_ASSIGN_OR_FAIL(out.v_bias, weights.vector(prefix + "attn_v.bias", v_rows));
    out.q_bias = halves_from_interleaved_bias(std::move(out.q_bias), layer.head_dim_k, layer.rope.dim);
    out.k_bias = halves_from_interleaved_bias(std::move(out.k_bias), layer.head_dim_k, layer.rope.dim);
  }
  KVANT_ASSIGN_OR_FAIL(
      out.output, weights.matrix(prefix + "attn_output.weight", hidden, int64_t{layer.num_q_heads} * layer.head_dim_v));
  KVANT_ASSIGN_OR_FAIL(out.ffn_norm, weights.vector(prefix + "ffn_norm.weight", hidden));
  KVANT_ASSIGN_OR_FAIL(out.gate, weights.matrix(prefix + "ffn_gate.weight", layer.ffn_size, hidden));
  KVANT_ASSIGN_OR_FAIL(out.up, weights.matrix(prefix + "ffn_up.weight", layer.ffn_size, hidden));
  KVANT_ASSIGN_OR_FAIL(out.down, weights.matrix(prefix + "ffn_down.weight", hidden, layer.ffn_size));
  return out;
}

}  // namespace

Result<ModelSource> open_llama(const GgufFile& file) {
  const Keys keys(file);
  const GgufWeights weights(file);
  ModelSource source;
  ModelConfig& config = source.config;
  config.architecture = "llama";
  config.name = file.get_string("general.name").value_or("llama");
  KVANT_ASSIGN_OR_FAIL(config.hidden_size, keys.size("embedding_length"));
  KVANT_ASSIGN_OR_FAIL(config.context_limit, keys.size("context_length"));
  KVANT_ASSIGN_OR_FAIL(config.norm_epsilon, keys.number("attention.layer_norm_rms_epsilon"));
  KVANT_ASSIGN_OR_FAIL(const int32_t num_layers, keys.size("block_count"));
  KVANT_ASSIGN_OR_FAIL(const LayerConfig layer, read_layer_config(file, keys, weights, config.hidden_size));

  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[1] > kMaxSize)
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: tensor 'token_embd.weight' with two dimensions is needed", file.name()));
  config.vocabulary_size = static_cast<int32_t>(embedding->shape[1]);
  KVANT_ASSIGN_OR_FAIL(source.embedding,
                       weights.matrix("token_embd.weight", config.vocabulary_size, config.hidden_size));
  KVANT_ASSIGN_OR_FAIL(source.final_norm, weights.vector("output_norm.weight", config.hidden_size));
  config.tied_head = !weights.contains("output.weight");
  source.head = source.embedding;
  if (!config.tied_head) {
    KVANT_ASSIGN_OR_FAIL(source.head, weights.matrix("output.weight", config.vocabulary_size, config.hidden_size));
  }

  for (int32_t index = 0; index < num_layers; ++index) {
    LayerConfig layer_config = layer;
    KVANT_ASSIGN_OR_FAIL(LayerWeights layer_weights,
                         read_layer(file, weights, index, config.hidden_size, layer_config));
    config.layers.push_back(std::move(layer_config));
    source.layers.push_back(std::move(layer_weights));
  }
  const GgufTensor* query = file.find_tensor("blk.0.attn_q.weight");
  config.kv_dtype = query->type == GgufType::kF16 ? DType::kF16 : DType::kBf16;
  return source;
}

}  // namespace kvant::engine
