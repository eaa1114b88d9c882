#include <utility>
#include <vector>

#include "core/float_bits.h"
#include "engine/runner/decoder.h"
#include "engine/runner/gate.h"
#include "engine/runner/layer_widths.h"

namespace kvant::engine {
namespace {

const float* values(const DeviceBuffer& buffer) { return buffer.as<float>(); }

}  // namespace

Status Decoder::normalise(const DeviceBuffer& weight, int64_t num_rows, const int32_t* row_indices) {
  if (!runs_rest()) return {};
  return ops::normalise({.x = values(hidden_),
                         .row_indices = row_indices,
                         .num_rows = num_rows,
                         .dim = config_.hidden_size,
                         .weight = values(weight),
                         .epsilon = config_.norm_epsilon,
                         .out = normed_.data()},
                        stream_);
}

attn::HeadPreparation Decoder::head_preparation(int32_t index, const PassSegment& segment, bool observed) {
  const LayerConfig& layer = config_.layers[static_cast<size_t>(index)];
  const DecoderLayer& weights = weights_.layers[static_cast<size_t>(index)];
  const LayerWidths width = layer_widths(layer);
  const ops::Rope& rope = ropes_[layer_rope_[static_cast<size_t>(index)]];
  const float* bias = values(weights.qkv_bias);
  const int64_t first_angle = segment.first_token * rope.num_pairs();
  std::byte* projected = activations(qkv_, segment.first_token * width.qkv());
  return {.q_bias = bias,
          .k_bias = bias == nullptr ? nullptr : bias + width.q,
          .v_bias = bias == nullptr ? nullptr : bias + width.q + width.k,
          .q_norm = values(weights.q_norm),
          .k_norm = values(weights.k_norm),
          .norm_epsilon = config_.norm_epsilon,
          .num_pairs = static_cast<int32_t>(rope.num_pairs()),
          .cosines = rope.cosines() + first_angle,
          .sines = rope.sines() + first_angle,
          .pairs = rope.pairs(),
          .q = projected,
          .q_token_stride = width.qkv(),
          .num_q_heads = layer.num_q_heads,
          .q_out = activations(q_, segment.first_token * width.q),
          .k_out = observed ? activations(qkv_, segment.first_token * width.qkv() + width.q) : nullptr,
          .v_out = observed ? activations(qkv_, segment.first_token * width.qkv() + width.q + width.k) : nullptr};
}

Status Decoder::attention(int32_t index, int64_t num_tokens, std::span<const PassSegment> segments,
                          LayerObserver* observer) {
  const DecoderLayer& weights = weights_.layers[static_cast<size_t>(index)];
  const LayerWidths width = layer_widths(config_.layers[static_cast<size_t>(index)]);
  KVANT_RETURN_IF_ERROR(normalise(weights.attention_norm, num_tokens, nullptr));
  KVANT_RETURN_IF_ERROR(multiply(*weights.qkv, {.x = normed_.data(), .num_rows = num_tokens, .y = qkv_.data()}));
  for (const PassSegment& segment : segments) {
    if (!runs_attention()) break;
    const int64_t row = segment.first_token * width.qkv();
    KVANT_RETURN_IF_ERROR(segment.cache->attend(index,
                                                {.k = activations(qkv_, row + width.q),
                                                 .v = activations(qkv_, row + width.q + width.k),
                                                 .k_token_stride = width.qkv(),
                                                 .v_token_stride = width.qkv(),
                                                 .preparation = head_preparation(index, segment, observer != nullptr),
                                                 .sinks = values(weights.sinks),
                                                 .out = activations(attended_, segment.first_token * width.attended)},
                                                stream_));
  }
  if (observer != nullptr) KVANT_RETURN_IF_ERROR(observe(index, num_tokens, *observer));
  return add_block({.product = weights.output.get(),
                    .x = attended_.data(),
                    .bias = &weights.output_bias,
                    .post_norm = &weights.post_attention_norm},
                   num_tokens);
}

Status Decoder::add_block(const BlockOutput& block, int64_t num_tokens) {
  const bool has_norm = block.post_norm->data() != nullptr, has_bias = block.bias->data() != nullptr;
  float* to = has_norm ? projected_.as<float>() : hidden_.as<float>();
  KVANT_RETURN_IF_ERROR(
      multiply(*block.product, {.x = block.x,
                                .num_rows = num_tokens,
                                .y = to,
                                .output = has_norm ? ops::LinearOutput::kF32 : ops::LinearOutput::kAddF32,
                                .scratch = projected_.data()}));
  if (!runs_rest()) return {};
  if (has_bias) KVANT_RETURN_IF_ERROR(ops::add_bias(to, num_tokens, config_.hidden_size, values(*block.bias), stream_));
  if (!has_norm) return {};
  return ops::normalise_add({.x = to,
                             .num_rows = num_tokens,
                             .dim = config_.hidden_size,
                             .weight = values(*block.post_norm),
                             .epsilon = config_.norm_epsilon,
                             .sum = hidden_.as<float>()},
                            stream_);
}

Status Decoder::feed_forward(int32_t index, int64_t num_tokens) {
  const LayerConfig& layer = config_.layers[static_cast<size_t>(index)];
  const DecoderLayer& weights = weights_.layers[static_cast<size_t>(index)];
  KVANT_RETURN_IF_ERROR(normalise(weights.ffn_norm, num_tokens, nullptr));
  if (weights.experts != nullptr) {
    if (!runs_products()) return {};
    return weights.experts->run(normed_.data(), num_tokens, hidden_.as<float>(), *experts_workspace_, stream_);
  }
  KVANT_RETURN_IF_ERROR(gate_up(layer, *weights.gate_up, num_tokens));
  const DeviceBuffer no_bias;
  return add_block(
      {.product = weights.down.get(), .x = activated_.data(), .bias = &no_bias, .post_norm = &weights.post_ffn_norm},
      num_tokens);
}

Status Decoder::gate_up(const LayerConfig& layer, ops::Linear& product, int64_t num_tokens) {
  const ops::Gate gate = gate_of(layer);
  if (product.gates(num_tokens))
    return multiply(product, {.x = normed_.data(),
                              .num_rows = num_tokens,
                              .y = activated_.data(),
                              .output = ops::LinearOutput::kGated,
                              .gate = gate});
  KVANT_RETURN_IF_ERROR(multiply(product, {.x = normed_.data(), .num_rows = num_tokens, .y = gate_up_.data()}));
  if (!runs_rest()) return {};
  return ops::apply_gate({.gate = gate,
                          .gate_up = gate_up_.data(),
                          .num_rows = num_tokens,
                          .size = layer.ffn_size,
                          .out = activated_.data()},
                         stream_);
}

Status Decoder::observe(int32_t index, int64_t num_tokens, LayerObserver& observer) {
  const LayerWidths width = layer_widths(config_.layers[static_cast<size_t>(index)]);
  const float* q = q_.as<float>();
  const float* qkv = qkv_.as<float>();
  std::vector<float> host;  // Calibration alone comes here.
  if (stream_.cuda != nullptr) {
    const int64_t q_count = num_tokens * width.q, count = q_count + num_tokens * width.qkv();
    std::vector<uint16_t> rounded(static_cast<size_t>(count));
    constexpr int64_t kBytes = sizeof(uint16_t);
    KVANT_RETURN_IF_ERROR(copy_bytes(rounded.data(), q_.data(), q_count * kBytes, stream_));
    KVANT_RETURN_IF_ERROR(
        copy_bytes(rounded.data() + q_count, qkv_.data(), num_tokens * width.qkv() * kBytes, stream_));
    KVANT_RETURN_IF_ERROR(synchronise(stream_));
    for (const uint16_t bits : rounded) host.push_back(bf16_to_float(bits));
    q = host.data();
    qkv = host.data() + q_count;
  }
  observer.observe(index, num_tokens, q, qkv + width.q, width.qkv(), qkv + width.q + width.k, width.qkv());
  return {};
}

}  // namespace kvant::engine
