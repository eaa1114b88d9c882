#include "engine/runner/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/float_bits.h"
#include "engine/models/rope_params.h"

namespace kvant::engine {
namespace {

/// Rows of logits that the decoder holds at once; more are done in turns.
constexpr int64_t kMaxHeadRows = 256;

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
int64_t largest(const ModelConfig& config, Size size) {
  int64_t out = 0;
  for (const LayerConfig& layer : config.layers) out = std::max(out, size(layer));
  return out;
}

const float* values(const DeviceBuffer& buffer) { return buffer.as<float>(); }

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::create(const ModelConfig& config, const DecoderWeights& weights,
                                                 int64_t max_tokens, Stream stream) {
  std::unique_ptr<Decoder> decoder(new Decoder(config, weights, stream));
  KVANT_FAIL_IF_ERROR(decoder->create_ropes(max_tokens));
  KVANT_FAIL_IF_ERROR(decoder->allocate(max_tokens));
  return decoder;
}

Status Decoder::create_ropes(int64_t max_tokens) {
  std::vector<RopeConfig> distinct;
  for (const LayerConfig& layer : config_.layers) {
    const auto same = std::find(distinct.begin(), distinct.end(), layer.rope);
    layer_rope_.push_back(static_cast<size_t>(same - distinct.begin()));
    if (same != distinct.end()) continue;
    distinct.push_back(layer.rope);
    KVANT_ASSIGN_OR_RETURN(ops::Rope rope, ops::Rope::create(rope_params(layer.rope), max_tokens, stream_));
    ropes_.push_back(std::move(rope));
  }
  return {};
}

Status Decoder::allocate(int64_t max_tokens) {
  KVANT_ASSIGN_OR_RETURN(step_, MirroredBuffer::create(3 * MirroredBuffer::bytes_for<int32_t>(max_tokens), stream_));
  tokens_ = step_.carve<int32_t>(max_tokens);
  positions_ = step_.carve<int32_t>(max_tokens);
  wanted_ = step_.carve<int32_t>(max_tokens);

  const bool cuda = stream_.cuda != nullptr;
  const int64_t element = dtype_bytes(ops::activation_dtype(stream_));
  const auto make = [&](DeviceBuffer& buffer, int64_t rows, int64_t width, int64_t element_bytes) -> Status {
    KVANT_ASSIGN_OR_RETURN(
        buffer, DeviceBuffer::create(memory_of(stream_), rows * width * element_bytes, "activations of a batch"));
    return {};
  };
  constexpr int64_t kFloat = sizeof(float);
  KVANT_RETURN_IF_ERROR(make(hidden_, max_tokens, config_.hidden_size, kFloat));
  KVANT_RETURN_IF_ERROR(make(normed_, max_tokens, config_.hidden_size, element));
  KVANT_RETURN_IF_ERROR(
      make(qkv_, max_tokens, largest(config_, [](const auto& l) { return widths(l).qkv(); }), element));
  KVANT_RETURN_IF_ERROR(make(q_, max_tokens, largest(config_, [](const auto& l) { return widths(l).q; }), element));
  KVANT_RETURN_IF_ERROR(
      make(attended_, max_tokens, largest(config_, [](const auto& l) { return widths(l).attended; }), element));
  const int64_t ffn = largest(config_, [](const auto& l) { return int64_t{l.ffn_size}; });
  KVANT_RETURN_IF_ERROR(make(gate_up_, max_tokens, 2 * ffn, element));
  KVANT_RETURN_IF_ERROR(make(activated_, max_tokens, ffn, element));
  if (!cuda) KVANT_RETURN_IF_ERROR(make(projected_, max_tokens, config_.hidden_size, kFloat));
  head_rows_ = std::min(max_tokens, kMaxHeadRows);
  KVANT_RETURN_IF_ERROR(make(logits_, head_rows_, config_.vocabulary_size, kFloat));
  KVANT_RETURN_IF_ERROR(make(best_, head_rows_, 1, sizeof(int32_t)));
  KVANT_ASSIGN_OR_RETURN(host_best_, DeviceBuffer::create(cuda ? MemoryKind::kPinned : MemoryKind::kHost,
                                                          head_rows_ * int64_t{sizeof(int32_t)}, "drawn tokens"));
  KVANT_ASSIGN_OR_RETURN(argmax_, ops::DeviceArgmax::create(head_rows_, stream_));
  return {};
}

Status Decoder::send_tokens(const DecoderPass& pass) {
  std::copy(pass.tokens.begin(), pass.tokens.end(), tokens_.host);
  std::copy(pass.positions.begin(), pass.positions.end(), positions_.host);
  // Tokens that pad a captured pass: any will do, nobody reads what becomes of them.
  std::fill(tokens_.host + pass.tokens.size(), tokens_.host + tokens_.count, 0);
  std::fill(positions_.host + pass.tokens.size(), positions_.host + positions_.count, 0);
  std::copy(pass.wanted.begin(), pass.wanted.end(), wanted_.host);
  return step_.upload(stream_);
}

Status Decoder::run(const DecoderPass& pass, LayerObserver* observer) {
  KVANT_RETURN_IF_ERROR(send_tokens(pass));
  const auto miss = [&](GraphMiss reason) {
    if (stream_.cuda != nullptr) graphs_.note_miss(reason);
  };
  if (pass.kind == DecoderPass::Kind::kDecodes && observer == nullptr && stream_.cuda != nullptr) {
    if (const std::optional<StepShape> shape = pass.segments.front().cache->step_shape())
      return run_captured(pass, *shape);
    miss(GraphMiss::kUnevenAgeing);
  } else if (observer != nullptr) {
    miss(GraphMiss::kObserved);
  }
  KVANT_RETURN_IF_ERROR(run_layers(std::ssize(pass.tokens), pass.segments, observer));
  return head(pass);
}

Status Decoder::run_layers(int64_t num_tokens, std::span<const PassSegment> segments, LayerObserver* observer) {
  KVANT_RETURN_IF_ERROR(weights_.embedding.run(tokens_.device, num_tokens, hidden_.as<float>(), stream_));
  for (ops::Rope& rope : ropes_) KVANT_RETURN_IF_ERROR(rope.set_positions(positions_.device, num_tokens, stream_));
  for (int32_t layer = 0; layer < config_.num_layers(); ++layer) {
    KVANT_RETURN_IF_ERROR(attention(layer, num_tokens, segments, observer));
    KVANT_RETURN_IF_ERROR(feed_forward(layer, num_tokens));
  }
  return {};
}

Status Decoder::run_captured(const DecoderPass& pass, const StepShape& shape) {
  const GraphCache::Key key{.cache = pass.segments.front().cache->id(), .shape = shape, .parts = parts_};
  const auto calls = [&]() -> Status {
    KVANT_RETURN_IF_ERROR(run_layers(shape.num_tokens, pass.segments, nullptr));
    return head_rows(shape.num_tokens, nullptr);
  };
  const auto row_of = [&](int64_t i) { return int64_t{pass.wanted[static_cast<size_t>(i)]}; };
  if (const CudaGraph* graph = graphs_.find(key); graph != nullptr) {
    graphs_.note_replay();
    KVANT_RETURN_IF_ERROR(graph->launch(stream_));
    return deliver(pass, 0, std::ssize(pass.wanted), row_of);
  }
  // The first pass of a shape runs call by call, which makes what a capture must not make: plans, loaded kernels.
  graphs_.note_miss(GraphMiss::kFirstOfShape);
  KVANT_RETURN_IF_ERROR(calls());
  KVANT_RETURN_IF_ERROR(deliver(pass, 0, std::ssize(pass.wanted), row_of));
  return graphs_.capture(key, stream_, calls);
}

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

Status Decoder::split_qkv(int32_t index, int64_t num_tokens) {
  const LayerConfig& layer = config_.layers[static_cast<size_t>(index)];
  const DecoderLayer& weights = weights_.layers[static_cast<size_t>(index)];
  if (!runs_rest()) return {};
  return ops::split_qkv({.qkv = qkv_.data(),
                         .q = q_.data(),
                         .num_tokens = num_tokens,
                         .num_q_heads = layer.num_q_heads,
                         .num_kv_heads = layer.num_kv_heads,
                         .head_dim_k = layer.head_dim_k,
                         .head_dim_v = layer.head_dim_v,
                         .bias = values(weights.qkv_bias),
                         .q_norm = values(weights.q_norm),
                         .k_norm = values(weights.k_norm),
                         .epsilon = config_.norm_epsilon,
                         .rope = &ropes_[layer_rope_[static_cast<size_t>(index)]]},
                        stream_);
}

Status Decoder::attention(int32_t index, int64_t num_tokens, std::span<const PassSegment> segments,
                          LayerObserver* observer) {
  const DecoderLayer& weights = weights_.layers[static_cast<size_t>(index)];
  const Widths width = widths(config_.layers[static_cast<size_t>(index)]);
  KVANT_RETURN_IF_ERROR(normalise(weights.attention_norm, num_tokens, nullptr));
  KVANT_RETURN_IF_ERROR(multiply(*weights.qkv, {.x = normed_.data(), .num_rows = num_tokens, .y = qkv_.data()}));
  KVANT_RETURN_IF_ERROR(split_qkv(index, num_tokens));
  if (observer != nullptr) KVANT_RETURN_IF_ERROR(observe(index, num_tokens, *observer));
  for (const PassSegment& segment : segments) {
    if (parts_ == PassParts::kProducts) break;
    const int64_t row = segment.first_token * width.qkv();
    KVANT_RETURN_IF_ERROR(segment.cache->attend(index,
                                                {.q = activations(q_, segment.first_token * width.q),
                                                 .k = activations(qkv_, row + width.q),
                                                 .v = activations(qkv_, row + width.q + width.k),
                                                 .k_token_stride = width.qkv(),
                                                 .v_token_stride = width.qkv(),
                                                 .sinks = nullptr,
                                                 .out = activations(attended_, segment.first_token * width.attended)},
                                                stream_));
  }
  return multiply(*weights.output, {.x = attended_.data(),
                                    .num_rows = num_tokens,
                                    .y = hidden_.data(),
                                    .output = ops::LinearOutput::kAddF32,
                                    .scratch = projected_.data()});
}

Status Decoder::feed_forward(int32_t index, int64_t num_tokens) {
  const LayerConfig& layer = config_.layers[static_cast<size_t>(index)];
  const DecoderLayer& weights = weights_.layers[static_cast<size_t>(index)];
  KVANT_RETURN_IF_ERROR(normalise(weights.ffn_norm, num_tokens, nullptr));
  KVANT_RETURN_IF_ERROR(
      multiply(*weights.gate_up, {.x = normed_.data(), .num_rows = num_tokens, .y = gate_up_.data()}));
  switch (layer.activation) {
    case Activation::kSilu:
      if (!runs_rest()) break;
      KVANT_RETURN_IF_ERROR(ops::gate_silu(
          {.gate_up = gate_up_.data(), .num_rows = num_tokens, .size = layer.ffn_size, .out = activated_.data()},
          stream_));
      break;
  }
  return multiply(*weights.down, {.x = activated_.data(),
                                  .num_rows = num_tokens,
                                  .y = hidden_.data(),
                                  .output = ops::LinearOutput::kAddF32,
                                  .scratch = projected_.data()});
}

Status Decoder::head(const DecoderPass& pass) {
  const bool logits_alone =
      std::all_of(pass.best.begin(), pass.best.end(), [](const int32_t* best) { return best == nullptr; });
  if (stream_.cuda == nullptr && logits_alone) return head_in_place(pass);
  const int64_t num_wanted = std::ssize(pass.wanted);
  for (int64_t begin = 0; begin < num_wanted; begin += head_rows_) {
    const int64_t end = std::min(num_wanted, begin + head_rows_);
    KVANT_RETURN_IF_ERROR(head_rows(end - begin, wanted_.device + begin));
    KVANT_RETURN_IF_ERROR(deliver(pass, begin, end, [&](int64_t i) { return i - begin; }));
  }
  // Also where nothing is wanted the tables of this step must be free for the next.
  return num_wanted == 0 ? synchronise(stream_) : Status();
}

Status Decoder::head_in_place(const DecoderPass& pass) {
  const int64_t num_wanted = std::ssize(pass.wanted);
  KVANT_RETURN_IF_ERROR(normalise(weights_.final_norm, num_wanted, wanted_.device));
  // One product per run of rows whose logits lie side by side: nearly always all of them.
  for (int64_t begin = 0; begin < num_wanted;) {
    int64_t end = begin + 1;
    while (end < num_wanted &&
           pass.logits[static_cast<size_t>(end)] == pass.logits[static_cast<size_t>(end - 1)] + config_.vocabulary_size)
      ++end;
    KVANT_RETURN_IF_ERROR(weights_.head->run({.x = activations(normed_, begin * config_.hidden_size),
                                              .num_rows = end - begin,
                                              .y = pass.logits[static_cast<size_t>(begin)],
                                              .output = ops::LinearOutput::kF32},
                                             stream_));
    begin = end;
  }
  return {};
}

Status Decoder::head_rows(int64_t num_rows, const int32_t* row_indices) {
  KVANT_RETURN_IF_ERROR(normalise(weights_.final_norm, num_rows, row_indices));
  KVANT_RETURN_IF_ERROR(
      multiply(*weights_.head,
               {.x = normed_.data(), .num_rows = num_rows, .y = logits_.data(), .output = ops::LinearOutput::kF32}));
  if (runs_rest())
    KVANT_RETURN_IF_ERROR(
        argmax_.run(logits_.as<float>(), num_rows, config_.vocabulary_size, best_.as<int32_t>(), stream_));
  return copy_bytes(host_best_.data(), best_.data(), num_rows * int64_t{sizeof(int32_t)}, stream_);
}

template <class RowOf>
Status Decoder::deliver(const DecoderPass& pass, int64_t begin, int64_t end, const RowOf& row_of) {
  for (int64_t i = begin; i < end; ++i) {
    if (float* to = pass.logits[static_cast<size_t>(i)]; to != nullptr)
      KVANT_RETURN_IF_ERROR(copy_bytes(to, logits_.as<float>() + row_of(i) * config_.vocabulary_size,
                                       config_.vocabulary_size * int64_t{sizeof(float)}, stream_));
  }
  KVANT_RETURN_IF_ERROR(synchronise(stream_));
  for (int64_t i = begin; i < end; ++i)
    if (int32_t* to = pass.best[static_cast<size_t>(i)]; to != nullptr) *to = host_best_.as<int32_t>()[row_of(i)];
  return {};
}

Status Decoder::observe(int32_t index, int64_t num_tokens, LayerObserver& observer) {
  const Widths width = widths(config_.layers[static_cast<size_t>(index)]);
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
