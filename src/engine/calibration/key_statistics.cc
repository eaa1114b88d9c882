#include "engine/calibration/key_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

#include "engine/calibration/conditioned_keys.h"

namespace kvant::engine {
namespace {

/// Some models have dead channels: without a floor, a share of the head's rms, their balance is not finite.
constexpr double kFloor = 0.01;

double rms(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

/// z of one head: sqrt(std of K / rms of Q) with floors, geometric mean 1. A head without keys or queries gets 1.
void balance(std::span<const double> key_std, std::span<const double> query_rms, float* z) {
  const double key_floor = kFloor * rms(key_std);
  const double query_floor = kFloor * rms(query_rms);
  const size_t n = key_std.size();
  std::fill_n(z, n, 1.0f);
  if (!(key_floor > 0) || !(query_floor > 0)) return;
  std::vector<double> log_z(n);
  double mean = 0;
  for (size_t d = 0; d < n; ++d) {
    log_z[d] = 0.5 * std::log(std::max(key_std[d], key_floor) / std::max(query_rms[d], query_floor));
    mean += log_z[d] / static_cast<double>(n);
  }
  for (size_t d = 0; d < n; ++d) z[d] = static_cast<float>(std::exp(log_z[d] - mean));
}

/// Largest |K'| of each head.
Result<std::vector<float>> conditioned_amax(const LayerConfig& config, const attn::KeyConditioner& conditioner,
                                            const std::vector<float>& keys, Stream stream) {
  KVANT_ASSIGN_OR_FAIL(const std::vector<float> conditioned,
                       conditioned_keys(config, conditioner, attn::KvFormat::kF32, {}, keys, stream));
  std::vector<float> amax(static_cast<size_t>(config.num_kv_heads));
  const auto dim = static_cast<size_t>(config.head_dim_k);
  for (size_t i = 0; i < conditioned.size(); ++i) {
    float& largest = amax[i / dim % amax.size()];
    largest = std::max(largest, std::abs(conditioned[i]));
  }
  return amax;
}

}  // namespace

KeyStatistics::KeyStatistics(const ModelConfig& config, int64_t max_tokens) : config_(config) {
  for (const LayerConfig& layer : config.layers) {
    const int64_t channels = int64_t{layer.num_kv_heads} * layer.head_dim_k;
    layers_.push_back({.keys = {},
                       .query_squares = std::vector<double>(static_cast<size_t>(channels)),
                       .value_amax = std::vector<float>(static_cast<size_t>(layer.num_kv_heads))});
    layers_.back().keys.reserve(static_cast<size_t>(channels * max_tokens));
  }
}

void KeyStatistics::observe(int32_t index, int64_t num_tokens, const float* q, const float* k, int64_t k_token_stride,
                            const float* v, int64_t v_token_stride) {
  const LayerConfig& config = config_.layers[static_cast<size_t>(index)];
  Layer& layer = layers_[static_cast<size_t>(index)];
  const int64_t group = config.num_q_heads / config.num_kv_heads;
  for (int64_t token = 0; token < num_tokens; ++token) {
    const float* key = k + token * k_token_stride;
    layer.keys.insert(layer.keys.end(), key, key + int64_t{config.num_kv_heads} * config.head_dim_k);
    for (int64_t head = 0; head < config.num_q_heads; ++head) {
      const float* query = q + (token * config.num_q_heads + head) * config.head_dim_k;
      double* squares = layer.query_squares.data() + head / group * config.head_dim_k;
      for (int64_t d = 0; d < config.head_dim_k; ++d) squares[d] += static_cast<double>(query[d]) * query[d];
    }
    const float* value = v + token * v_token_stride;
    for (int64_t head = 0; head < config.num_kv_heads; ++head) {
      float& amax = layer.value_amax[static_cast<size_t>(head)];
      for (int64_t d = 0; d < config.head_dim_v; ++d)
        amax = std::max(amax, std::abs(value[head * config.head_dim_v + d]));
    }
  }
  layer.tokens += num_tokens;
}

Result<LayerProfile> KeyStatistics::finish_layer(const LayerConfig& config, const Layer& layer, Stream stream) const {
  const auto dim = static_cast<size_t>(config.head_dim_k);
  const auto heads = static_cast<size_t>(config.num_kv_heads);
  const size_t channels = heads * dim;
  const auto tokens = static_cast<size_t>(layer.tokens);
  const double count = std::max<double>(1.0, static_cast<double>(tokens));
  const double query_count = count * config.num_q_heads / config.num_kv_heads;
  std::vector<double> mean(channels), deviation(channels), query_rms(channels);
  for (size_t t = 0; t < tokens; ++t)
    for (size_t c = 0; c < channels; ++c) mean[c] += layer.keys[t * channels + c] / count;
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < channels; ++c) {
      const double difference = layer.keys[t * channels + c] - mean[c];
      deviation[c] += difference * difference / count;
    }
  }
  LayerProfile out{
      .mu = std::vector<float>(channels), .z = std::vector<float>(channels), .zi = {}, .g_k = {}, .g_v = {}};
  for (size_t c = 0; c < channels; ++c) {
    out.mu[c] = static_cast<float>(mean[c]);
    deviation[c] = std::sqrt(deviation[c]);
    query_rms[c] = std::sqrt(layer.query_squares[c] / query_count);
  }
  for (size_t head = 0; head < heads; ++head)
    balance(std::span(deviation).subspan(head * dim, dim), std::span(query_rms).subspan(head * dim, dim),
            out.z.data() + head * dim);
  for (const float z : out.z) out.zi.push_back(1.0f / z);

  for (const attn::KeyConditioning kind :
       {attn::KeyConditioning::kNone, attn::KeyConditioning::kMean, attn::KeyConditioning::kFull}) {
    const attn::KeyConditioner conditioner{.kind = kind, .mu = out.mu.data(), .z = out.z.data(), .zi = out.zi.data()};
    KVANT_ASSIGN_OR_FAIL(const std::vector<float> amax, conditioned_amax(config, conditioner, layer.keys, stream));
    for (const float value : amax) out.g_k[static_cast<size_t>(kind)].push_back(nvfp4_scale(value));
  }
  for (const float amax : layer.value_amax) out.g_v.push_back(nvfp4_scale(amax));
  return out;
}

Result<KvProfile> KeyStatistics::finish(Stream stream) const {
  KvProfile profile;
  for (size_t i = 0; i < layers_.size(); ++i) {
    KVANT_ASSIGN_OR_FAIL(LayerProfile layer, finish_layer(config_.layers[i], layers_[i], stream));
    profile.layers.push_back(std::move(layer));
  }
  return profile;
}

Result<std::vector<float>> KeyStatistics::score_noise(const KvProfile& profile, Stream stream) const {
  std::vector<float> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerConfig& config = config_.layers[i];
    const double queries =
        std::max<double>(1.0, static_cast<double>(layers_[i].tokens)) * config.num_q_heads / config.num_kv_heads;
    std::vector<double> mean_squares;
    for (const double squares : layers_[i].query_squares) mean_squares.push_back(squares / queries);
    KVANT_ASSIGN_OR_FAIL(const float noise,
                         engine::score_noise(config, profile.layers[i], layers_[i].keys, mean_squares, stream));
    out.push_back(noise);
  }
  return out;
}

}  // namespace kvant::engine
