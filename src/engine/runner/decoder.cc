#include "engine/runner/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/models/rope_params.h"
#include "engine/runner/layer_widths.h"

namespace kvant::engine {
namespace {

/// Rows of logits that the decoder holds at once; more are done in turns.
constexpr int64_t kMaxHeadRows = 256;

template <class Size>
int64_t largest(const ModelConfig& config, Size size) {
  int64_t out = 0;
  for (const LayerConfig& layer : config.layers) out = std::max(out, size(layer));
  return out;
}

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
  KVANT_ASSIGN_OR_RETURN(step_, MirroredBuffer::create(3 * MirroredBuffer::bytes_for<int32_t>(max_tokens) +
                                                           MirroredBuffer::bytes_for<ops::Draw>(max_tokens),
                                                       stream_));
  tokens_ = step_.carve<int32_t>(max_tokens);
  positions_ = step_.carve<int32_t>(max_tokens);
  wanted_ = step_.carve<int32_t>(max_tokens);
  draws_ = step_.carve<ops::Draw>(max_tokens);

  const bool cuda = stream_.cuda != nullptr;
  const int64_t element = dtype_bytes(ops::activation_dtype(stream_));
  // Products of fp8 weights write whole groups of rows.
  const auto make = [&](DeviceBuffer& buffer, int64_t rows, int64_t width, int64_t element_bytes) -> Status {
    const int64_t bytes = ops::padded_fp8_rows(rows) * width * element_bytes;
    KVANT_ASSIGN_OR_RETURN(buffer, DeviceBuffer::create(memory_of(stream_), bytes, "activations of a batch"));
    return {};
  };
  constexpr int64_t kFloat = sizeof(float);
  KVANT_RETURN_IF_ERROR(make(hidden_, max_tokens, config_.hidden_size, kFloat));
  KVANT_RETURN_IF_ERROR(make(normed_, max_tokens, config_.hidden_size, element));
  KVANT_RETURN_IF_ERROR(
      make(qkv_, max_tokens, largest(config_, [](const auto& l) { return layer_widths(l).qkv(); }), element));
  KVANT_RETURN_IF_ERROR(
      make(q_, max_tokens, largest(config_, [](const auto& l) { return layer_widths(l).q; }), element));
  KVANT_RETURN_IF_ERROR(
      make(attended_, max_tokens, largest(config_, [](const auto& l) { return layer_widths(l).attended; }), element));
  const int64_t ffn = largest(config_, [](const auto& l) { return l.experts.count > 0 ? 0 : int64_t{l.ffn_size}; });
  KVANT_RETURN_IF_ERROR(make(gate_up_, max_tokens, 2 * ffn, element));
  KVANT_RETURN_IF_ERROR(make(activated_, max_tokens, ffn, element));
  const bool has_post_norms = std::any_of(config_.layers.begin(), config_.layers.end(),
                                          [](const LayerConfig& layer) { return layer.post_norms; });
  if (!cuda || has_post_norms) KVANT_RETURN_IF_ERROR(make(projected_, max_tokens, config_.hidden_size, kFloat));
  KVANT_RETURN_IF_ERROR(create_experts_workspace(max_tokens));
  head_rows_ = std::min(max_tokens, kMaxHeadRows);
  KVANT_RETURN_IF_ERROR(make(logits_, head_rows_, config_.vocabulary_size, kFloat));
  KVANT_RETURN_IF_ERROR(make(drawn_, head_rows_, 1, sizeof(int32_t)));
  KVANT_ASSIGN_OR_RETURN(host_drawn_, DeviceBuffer::create(cuda ? MemoryKind::kPinned : MemoryKind::kHost,
                                                           head_rows_ * int64_t{sizeof(int32_t)}, "drawn tokens"));
  KVANT_ASSIGN_OR_RETURN(sampler_, ops::DeviceSampler::create(head_rows_, stream_));
  return {};
}

Status Decoder::create_experts_workspace(int64_t max_tokens) {
  // Layers with experts are alike in every known model; the largest one serves all.
  const DecoderLayer* most = nullptr;
  int64_t largest_size = 0;
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerConfig& layer = config_.layers[i];
    const int64_t size = int64_t{layer.experts.count} * layer.ffn_size;
    if (layer.experts.count == 0 || size <= largest_size) continue;
    largest_size = size;
    most = &weights_.layers[i];
  }
  if (most == nullptr) return {};
  KVANT_ASSIGN_OR_RETURN(experts_workspace_, most->experts->create_workspace(max_tokens, stream_));
  return {};
}

Status Decoder::send_tokens(const DecoderPass& pass) {
  std::copy(pass.tokens.begin(), pass.tokens.end(), tokens_.host);
  std::copy(pass.positions.begin(), pass.positions.end(), positions_.host);
  // Tokens that pad a captured pass: any will do, nobody reads what becomes of them.
  std::fill(tokens_.host + pass.tokens.size(), tokens_.host + tokens_.count, 0);
  std::fill(positions_.host + pass.tokens.size(), positions_.host + positions_.count, 0);
  std::copy(pass.wanted.begin(), pass.wanted.end(), wanted_.host);
  std::fill_n(draws_.host, draws_.count, ops::Draw{});
  for (size_t i = 0; i < pass.wanted.size(); ++i) draws_.host[pass.wanted[i]] = pass.draws[i];
  KVANT_RETURN_IF_ERROR(send_changes(pass));
  return step_.upload(stream_);
}

Status Decoder::send_changes(const DecoderPass& pass) {
  draw_parts_ = {
      .changes = std::any_of(pass.changes.begin(), pass.changes.end(), [](const auto& list) { return !list.empty(); }),
      .logprobs =
          std::any_of(pass.logprobs.begin(), pass.logprobs.end(), [](const auto* to) { return to != nullptr; })};
  if (draw_parts_.logprobs && logprobs_.data() == nullptr) {
    const int64_t bytes = head_rows_ * int64_t{sizeof(ops::DrawnLogprobs)};
    const MemoryKind host = stream_.cuda != nullptr ? MemoryKind::kPinned : MemoryKind::kHost;
    KVANT_ASSIGN_OR_RETURN(logprobs_, DeviceBuffer::create(memory_of(stream_), bytes, "log probabilities"));
    KVANT_ASSIGN_OR_RETURN(host_logprobs_, DeviceBuffer::create(host, bytes, "log probabilities"));
  }
  if (!draw_parts_.changes) return {};
  if (changes_.host == nullptr) {
    constexpr int64_t kBytes = MirroredBuffer::bytes_for<ops::LogitChange>(ops::kMaxLogitChanges);
    KVANT_ASSIGN_OR_RETURN(changes_step_, MirroredBuffer::create(kBytes, stream_));
    changes_ = changes_step_.carve<ops::LogitChange>(ops::kMaxLogitChanges);
  }
  int64_t used = 0;
  for (size_t i = 0; i < pass.wanted.size(); ++i) {
    const std::span<const ops::LogitChange> list = pass.changes[i];
    KVANT_CHECK(used + std::ssize(list) <= changes_.count);
    ops::Draw& draw = draws_.host[pass.wanted[i]];
    draw.first_change = static_cast<int32_t>(used);
    draw.num_changes = static_cast<int32_t>(list.size());
    std::copy(list.begin(), list.end(), changes_.host + used);
    used += std::ssize(list);
  }
  return changes_step_.upload(stream_, used * int64_t{sizeof(ops::LogitChange)});
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
  KVANT_RETURN_IF_ERROR(
      weights_.embedding.run(tokens_.device, num_tokens, config_.embedding_scale, hidden_.as<float>(), stream_));
  for (ops::Rope& rope : ropes_) KVANT_RETURN_IF_ERROR(rope.set_positions(positions_.device, num_tokens, stream_));
  for (int32_t layer = 0; layer < config_.num_layers(); ++layer) {
    KVANT_RETURN_IF_ERROR(attention(layer, num_tokens, segments, observer));
    KVANT_RETURN_IF_ERROR(feed_forward(layer, num_tokens));
  }
  return {};
}

}  // namespace kvant::engine
