#include "engine/runner/decoder.h"

#include <algorithm>
#include <cmath>

#include "engine/models/rope_params.h"
#include "ops/activation.h"
#include "ops/norm.h"
#include "ops/row_loop.h"

namespace kvant::engine {
namespace {

struct Widths {
  int64_t q = 0;
  int64_t k = 0;
  int64_t v = 0;
  int64_t qkv() const { return q + k + v; }
  int64_t attended = 0;
};

Widths widths(const LayerConfig& layer) {
  return {.q = int64_t{layer.num_q_heads} * layer.head_dim_k,
          .k = int64_t{layer.num_kv_heads} * layer.head_dim_k,
          .v = int64_t{layer.num_kv_heads} * layer.head_dim_v,
          .attended = int64_t{layer.num_q_heads} * layer.head_dim_v};
}

template <class Size>
void resize_for_largest(std::vector<float>& buffer, const ModelConfig& config, int64_t max_tokens, Size size) {
  int64_t largest = 0;
  for (const LayerConfig& layer : config.layers) largest = std::max(largest, size(layer));
  buffer.resize(static_cast<size_t>(max_tokens * largest));
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const DecoderWeights& weights, int64_t max_tokens, ThreadPool& pool)
    : config_(config), weights_(weights), stream_(Stream::on_cpu(pool)) {
  std::vector<RopeConfig> distinct;
  for (const LayerConfig& layer : config.layers) {
    const auto same = std::find(distinct.begin(), distinct.end(), layer.rope);
    layer_rope_.push_back(static_cast<size_t>(same - distinct.begin()));
    if (same != distinct.end()) continue;
    distinct.push_back(layer.rope);
    ropes_.emplace_back(rope_params(layer.rope));
  }
  hidden_.resize(static_cast<size_t>(max_tokens * config.hidden_size));
  normed_.resize(hidden_.size());
  projected_.resize(hidden_.size());
  resize_for_largest(qkv_, config, max_tokens, [](const LayerConfig& layer) { return widths(layer).qkv(); });
  resize_for_largest(q_, config, max_tokens, [](const LayerConfig& layer) { return widths(layer).q; });
  resize_for_largest(attended_, config, max_tokens, [](const LayerConfig& layer) { return widths(layer).attended; });
  resize_for_largest(gate_up_, config, max_tokens,
                     [](const LayerConfig& layer) { return int64_t{2} * layer.ffn_size; });
  resize_for_largest(activated_, config, max_tokens, [](const LayerConfig& layer) { return int64_t{layer.ffn_size}; });
}

Status Decoder::run(const DecoderPass& pass, LayerObserver* observer) {
  embed(pass.tokens);
  for (ops::Rope& rope : ropes_) rope.set_positions(pass.positions);
  for (int32_t layer = 0; layer < config_.num_layers(); ++layer) {
    KVANT_RETURN_IF_ERROR(attention(layer, pass, observer));
    feed_forward(layer, std::ssize(pass.tokens));
  }
  head(pass);
  return {};
}

void Decoder::embed(std::span<const int32_t> tokens) {
  const int64_t width = config_.hidden_size;
  ops::for_row_blocks(std::ssize(tokens), width, stream_, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = tokens[static_cast<size_t>(i)];
      weights_.embedding.read(token, token + 1, hidden_.data() + i * width);
    }
  });
}

void Decoder::normalise(const float* rows, int64_t num_rows, const std::vector<float>& weight, float* out) {
  ops::rms_norm(rows, num_rows, std::ssize(weight), weight.data(), config_.norm_epsilon, out, stream_);
}

void Decoder::prepare_qkv(const LayerConfig& layer, const DecoderLayer& weights, const ops::Rope& rope,
                          int64_t num_tokens) {
  const Widths width = widths(layer);
  if (!weights.qkv_bias.empty())
    for (int64_t token = 0; token < num_tokens; ++token)
      ops::add(qkv_.data() + token * width.qkv(), weights.qkv_bias.data(), width.qkv(),
               qkv_.data() + token * width.qkv());
  rope.apply(qkv_.data(), layer.num_q_heads, layer.head_dim_k, width.qkv(), stream_);
  rope.apply(qkv_.data() + width.q, layer.num_kv_heads, layer.head_dim_k, width.qkv(), stream_);
  for (int64_t token = 0; token < num_tokens; ++token)
    std::copy_n(qkv_.data() + token * width.qkv(), width.q, q_.data() + token * width.q);
}

Status Decoder::attention(int32_t index, const DecoderPass& pass, LayerObserver* observer) {
  const LayerConfig& layer = config_.layers[static_cast<size_t>(index)];
  const DecoderLayer& weights = weights_.layers[static_cast<size_t>(index)];
  const Widths width = widths(layer);
  const int64_t num_tokens = std::ssize(pass.tokens);
  normalise(hidden_.data(), num_tokens, weights.attention_norm, normed_.data());
  weights.qkv->run(normed_.data(), num_tokens, qkv_.data(), stream_);
  prepare_qkv(layer, weights, ropes_[layer_rope_[static_cast<size_t>(index)]], num_tokens);
  const float* k = qkv_.data() + width.q;
  const float* v = k + width.k;
  if (observer != nullptr) observer->observe(index, num_tokens, q_.data(), k, width.qkv(), v, width.qkv());
  for (const PassSegment& segment : pass.segments) {
    KVANT_RETURN_IF_ERROR(segment.cache->attend(index,
                                                {.q = q_.data() + segment.first_token * width.q,
                                                 .k = k + segment.first_token * width.qkv(),
                                                 .v = v + segment.first_token * width.qkv(),
                                                 .k_token_stride = width.qkv(),
                                                 .v_token_stride = width.qkv(),
                                                 .sinks = nullptr,
                                                 .out = attended_.data() + segment.first_token * width.attended},
                                                stream_));
  }
  weights.output->run(attended_.data(), num_tokens, projected_.data(), stream_);
  ops::add(hidden_.data(), projected_.data(), num_tokens * config_.hidden_size, hidden_.data());
  return {};
}

void Decoder::feed_forward(int32_t index, int64_t num_tokens) {
  const LayerConfig& layer = config_.layers[static_cast<size_t>(index)];
  const DecoderLayer& weights = weights_.layers[static_cast<size_t>(index)];
  normalise(hidden_.data(), num_tokens, weights.ffn_norm, normed_.data());
  weights.gate_up->run(normed_.data(), num_tokens, gate_up_.data(), stream_);
  switch (layer.activation) {
    case Activation::kSilu:
      ops::silu_mul_rows(gate_up_.data(), num_tokens, layer.ffn_size, activated_.data(), stream_);
      break;
  }
  weights.down->run(activated_.data(), num_tokens, projected_.data(), stream_);
  ops::add(hidden_.data(), projected_.data(), num_tokens * config_.hidden_size, hidden_.data());
}

void Decoder::head(const DecoderPass& pass) {
  const int64_t width = config_.hidden_size;
  const int64_t num_wanted = std::ssize(pass.wanted);
  // Wanted rows are gathered in place of the layer output, which is not needed any more.
  for (int64_t i = 0; i < num_wanted; ++i)
    std::copy_n(hidden_.data() + pass.wanted[static_cast<size_t>(i)] * width, width, projected_.data() + i * width);
  normalise(projected_.data(), num_wanted, weights_.final_norm, normed_.data());
  // One product per run of rows whose logits lie side by side: nearly always all of them.
  for (int64_t begin = 0; begin < num_wanted;) {
    int64_t end = begin + 1;
    while (end < num_wanted &&
           pass.logits[static_cast<size_t>(end)] == pass.logits[static_cast<size_t>(end - 1)] + config_.vocabulary_size)
      ++end;
    weights_.head->run(normed_.data() + begin * width, end - begin, pass.logits[static_cast<size_t>(begin)], stream_);
    begin = end;
  }
}

}  // namespace kvant::engine
