#include "engine/models/dummy_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/float_bits.h"

namespace kvant::engine {
namespace {

using Json = nlohmann::json;

/// Random values that all weights are cut from: making each anew would take longer than sending it to a device.
using RandomTable = std::vector<float>;
constexpr size_t kTableSize = size_t{1} << 20;

uint64_t mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

/// Uniform with variance 1.
std::shared_ptr<const RandomTable> make_table() {
  auto table = std::make_shared<RandomTable>(kTableSize);
  for (size_t i = 0; i < table->size(); ++i)
    (*table)[i] = (static_cast<float>(mix(i + 1) >> 40) * 0x1p-23f - 1.0f) * std::sqrt(3.0f);
  return table;
}

class Shape {
 public:
  Shape(std::string name, Json json) : name_(std::move(name)), json_(std::move(json)) {}

  Result<int32_t> size(const char* key) {
    seen_.insert(key);
    if (!json_.contains(key))
      return failure(StatusCode::kInvalidArgument, fmt::format("{}: {} is missing", name_, key));
    return size_or(key, 0);
  }
  Result<int32_t> size_or(const char* key, int32_t fallback) {
    seen_.insert(key);
    if (!json_.contains(key)) return fallback;
    const Json& value = json_[key];
    if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > int64_t{1} << 24)
      return failure(StatusCode::kInvalidArgument,
                     fmt::format("{}: {} is {}; 1 to {} is needed", name_, key, value.dump(), int64_t{1} << 24));
    return static_cast<int32_t>(value.get<int64_t>());
  }
  Result<float> number_or(const char* key, float fallback) {
    seen_.insert(key);
    if (!json_.contains(key)) return fallback;
    const Json& value = json_[key];
    if (!value.is_number() || !(value.get<double>() > 0.0) || !(value.get<double>() < 1e30))
      return failure(StatusCode::kInvalidArgument,
                     fmt::format("{}: {} is {}; a positive number is needed", name_, key, value.dump()));
    return value.get<float>();
  }
  Result<bool> flag(const char* key) {
    seen_.insert(key);
    if (!json_.contains(key)) return false;
    if (!json_[key].is_boolean())
      return failure(StatusCode::kInvalidArgument,
                     fmt::format("{}: {} is {}; true or false is needed", name_, key, json_[key].dump()));
    return json_[key].get<bool>();
  }
  std::string text(const char* key) {
    seen_.insert(key);
    return json_.contains(key) && json_[key].is_string() ? json_[key].get<std::string>() : name_;
  }
  Status check_all_read() const {
    for (const auto& [key, value] : json_.items())
      if (!seen_.contains(key))
        return {StatusCode::kInvalidArgument, fmt::format("{}: '{}' is no key of a model shape", name_, key)};
    return {};
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  Json json_;
  std::set<std::string> seen_;
};

Result<ModelConfig> read_config(Shape& shape) {
  ModelConfig config;
  config.architecture = "dummy";
  config.name = shape.text("name");
  LayerConfig layer;
  KVANT_ASSIGN_OR_FAIL(const int32_t num_layers, shape.size("num_layers"));
  KVANT_ASSIGN_OR_FAIL(config.hidden_size, shape.size("hidden_size"));
  KVANT_ASSIGN_OR_FAIL(config.vocabulary_size, shape.size("vocabulary_size"));
  KVANT_ASSIGN_OR_FAIL(config.context_limit, shape.size("context_limit"));
  KVANT_ASSIGN_OR_FAIL(config.norm_epsilon, shape.number_or("norm_epsilon", 1e-5f));
  KVANT_ASSIGN_OR_FAIL(config.tied_head, shape.flag("tied_head"));
  KVANT_ASSIGN_OR_FAIL(layer.num_q_heads, shape.size("num_q_heads"));
  KVANT_ASSIGN_OR_FAIL(layer.num_kv_heads, shape.size_or("num_kv_heads", layer.num_q_heads));
  KVANT_ASSIGN_OR_FAIL(layer.head_dim_k, shape.size("head_dim"));
  layer.head_dim_v = layer.head_dim_k;
  KVANT_ASSIGN_OR_FAIL(layer.ffn_size, shape.size("ffn_size"));
  KVANT_ASSIGN_OR_FAIL(layer.rope.theta, shape.number_or("rope_theta", 10000.0f));
  KVANT_ASSIGN_OR_FAIL(layer.qk_norm, shape.flag("qk_norm"));
  KVANT_ASSIGN_OR_FAIL(layer.qkv_bias, shape.flag("qkv_bias"));
  KVANT_ASSIGN_OR_FAIL(layer.output_bias, shape.flag("output_bias"));
  KVANT_ASSIGN_OR_FAIL(layer.sinks, shape.flag("sinks"));
  KVANT_ASSIGN_OR_FAIL(const int32_t window, shape.size_or("window", 0));
  KVANT_ASSIGN_OR_FAIL(const int32_t window_every, shape.size_or("window_every", 1));
  KVANT_ASSIGN_OR_FAIL(layer.experts.count, shape.size_or("num_experts", 0));
  if (layer.experts.count > 0) {
    KVANT_ASSIGN_OR_FAIL(layer.experts.used, shape.size("num_experts_used"));
    if (layer.experts.used > layer.experts.count)
      return failure(StatusCode::kInvalidArgument, fmt::format("{}: {} of {} experts are used; 1 to all are needed",
                                                               shape.name(), layer.experts.used, layer.experts.count));
  }
  KVANT_FAIL_IF_ERROR(shape.check_all_read());
  if (layer.num_q_heads % layer.num_kv_heads != 0 || layer.head_dim_k % 2 != 0)
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("{}: {} query heads of {} channels on {} KV heads; whole groups and an even size are "
                               "needed",
                               shape.name(), layer.num_q_heads, layer.head_dim_k, layer.num_kv_heads));
  layer.rope.dim = layer.head_dim_k;
  layer.softmax_scale = 1.0f / std::sqrt(static_cast<float>(layer.head_dim_k));
  for (int32_t i = 0; i < num_layers; ++i) {
    config.layers.push_back(layer);
    if (i % window_every == 0) config.layers.back().window = window;
  }
  return config;
}

/// Rows that begin anywhere in a table of values, by seed and row.
template <class Value>
class RandomRows {
 public:
  RandomRows(std::shared_ptr<const std::vector<Value>> table, uint64_t seed, int64_t columns)
      : table_(std::move(table)), seed_(seed), columns_(columns) {}

  /// Calls visit(value) for all values of rows, in order.
  template <class Visit>
  void visit(int64_t begin, int64_t end, const Visit& visit) const {
    for (int64_t row = begin; row < end; ++row) {
      auto at = static_cast<size_t>(mix(seed_ << 32 ^ static_cast<uint64_t>(row)));
      for (int64_t i = 0; i < columns_; ++i, ++at) visit((*table_)[at % kTableSize]);
    }
  }

 private:
  std::shared_ptr<const std::vector<Value>> table_;
  uint64_t seed_;
  int64_t columns_;
};

class Weights {
 public:
  /// With `fp8` the matrices of layers are e4m3.
  explicit Weights(bool fp8) : table_(make_table()) {
    if (!fp8) return;
    auto codes = std::make_shared<std::vector<uint8_t>>();
    for (const float value : *table_) codes->push_back(float_to_e4m3(value * kCodesOfOne));
    codes_ = std::move(codes);
  }

  /// Of a size that keeps activations near 1.
  WeightView matrix(std::string name, int64_t rows, int64_t columns) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(columns));
    return {.name = std::move(name),
            .rows = rows,
            .columns = columns,
            .read = [values = RandomRows(table_, ++count_, columns), scale](int64_t begin, int64_t end, float* out) {
              values.visit(begin, end, [&](float value) { *out++ = value * scale; });
            }};
  }
  /// The same, of e4m3 codes with a scale where that is asked for and rows are whole groups.
  WeightView layer_matrix(std::string name, int64_t rows, int64_t columns) {
    if (codes_ == nullptr || columns % ops::kFp8Group != 0) return matrix(std::move(name), rows, columns);
    const float scale = 1.0f / kCodesOfOne / std::sqrt(static_cast<float>(columns));
    const RandomRows<uint8_t> codes(codes_, ++count_, columns);
    return {.name = std::move(name),
            .rows = rows,
            .columns = columns,
            .read =
                [=](int64_t begin, int64_t end, float* out) {
                  codes.visit(begin, end, [&](uint8_t code) { *out++ = e4m3_to_float(code) * scale; });
                },
            .read_fp8 =
                [=](int64_t begin, int64_t end, uint8_t* out, float* scales) {
                  codes.visit(begin, end, [&](uint8_t code) { *out++ = code; });
                  std::fill_n(scales, (end - begin) * (columns / ops::kFp8Group), scale);
                }};
  }
  static WeightView vector(std::string name, int64_t size, float value) {
    return {.name = std::move(name), .rows = 1, .columns = size, .read = [size, value](int64_t, int64_t, float* out) {
              std::fill_n(out, size, value);
            }};
  }

 private:
  static constexpr float kCodesOfOne = 64.0f;

  std::shared_ptr<const RandomTable> table_;
  std::shared_ptr<const std::vector<uint8_t>> codes_;  ///< The table's; null where none are asked for.
  uint64_t count_ = 0;
};

LayerWeights layer_weights(const LayerConfig& layer, int64_t hidden, Weights& weights) {
  const int64_t q = int64_t{layer.num_q_heads} * layer.head_dim_k, kv = int64_t{layer.num_kv_heads} * layer.head_dim_k;
  const int64_t experts = std::max(1, layer.experts.count);
  LayerWeights out;
  out.attention_norm = Weights::vector("attention_norm", hidden, 1.0f);
  out.q = weights.layer_matrix("q", q, hidden);
  out.k = weights.layer_matrix("k", kv, hidden);
  out.v = weights.layer_matrix("v", kv, hidden);
  out.output = weights.layer_matrix("output", hidden, q);
  out.ffn_norm = Weights::vector("ffn_norm", hidden, 1.0f);
  out.gate = weights.layer_matrix("gate", experts * layer.ffn_size, hidden);
  out.up = weights.layer_matrix("up", experts * layer.ffn_size, hidden);
  out.down = weights.layer_matrix("down", experts * hidden, layer.ffn_size);
  if (layer.experts.count > 0) out.router = weights.matrix("router", experts, hidden);
  if (layer.sinks) out.sinks = Weights::vector("sinks", layer.num_q_heads, 0.0f);
  if (layer.output_bias) out.output_bias = Weights::vector("output_bias", hidden, 0.0f);
  if (layer.qkv_bias) {
    out.q_bias = Weights::vector("q_bias", q, 0.0f);
    out.k_bias = Weights::vector("k_bias", kv, 0.0f);
    out.v_bias = Weights::vector("v_bias", kv, 0.0f);
  }
  if (layer.qk_norm) {
    out.q_norm = Weights::vector("q_norm", layer.head_dim_k, 1.0f);
    out.k_norm = Weights::vector("k_norm", layer.head_dim_k, 1.0f);
  }
  return out;
}

}  // namespace

Result<ModelSource> open_dummy_model(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) return failure(StatusCode::kNotFound, fmt::format("{}: cannot be opened", file.string()));
  std::stringstream text;
  text << in.rdbuf();
  Json json = Json::parse(text.str(), nullptr, false);
  if (!json.is_object())
    return failure(StatusCode::kDataLoss, fmt::format("{}: is no JSON object with a model's shape", file.string()));
  Shape shape(file.filename().string(), std::move(json));
  ModelSource source;
  KVANT_ASSIGN_OR_FAIL(source.fp8_activations, shape.flag("fp8_weights"));
  KVANT_ASSIGN_OR_FAIL(source.config, read_config(shape));
  const ModelConfig& config = source.config;
  Weights weights(source.fp8_activations);
  source.embedding = weights.matrix("embedding", config.vocabulary_size, config.hidden_size);
  source.head =
      config.tied_head ? source.embedding : weights.matrix("head", config.vocabulary_size, config.hidden_size);
  source.final_norm = Weights::vector("final_norm", config.hidden_size, 1.0f);
  for (const LayerConfig& layer : config.layers)
    source.layers.push_back(layer_weights(layer, config.hidden_size, weights));
  source.hash = fmt::format("dummy-{}", config.name);
  return source;
}

}  // namespace kvant::engine
