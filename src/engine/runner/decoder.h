#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device_memory.h"
#include "engine/cache/kv_cache_set.h"
#include "engine/runner/decoder_weights.h"
#include "engine/runner/graph_cache.h"
#include "engine/runner/runner.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/engine/model_config.h"
#include "ops/decoder_ops.h"
#include "ops/rope.h"

namespace kvant::engine {

/// Tokens of one cache set within a pass. Its step has begun.
struct PassSegment {
  KvCacheSet* cache = nullptr;
  int64_t first_token = 0;
  int64_t num_tokens = 0;
};

/// One trip of a batch of tokens through all layers. Everything is in host memory.
struct DecoderPass {
  enum class Kind : uint8_t {
    kMixed,    ///< Run call by call.
    kDecodes,  ///< One cache set's decode rows: captured on CUDA. Its step may be padded with tokens.
  };
  Kind kind = Kind::kMixed;
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;  ///< One per token.
  std::span<const PassSegment> segments;
  std::span<const int32_t> wanted;   ///< Token indices whose logits are wanted,
  std::span<float* const> logits;    ///< where each goes, [vocabulary]; null where only the next token is wanted,
  std::span<int32_t* const> drawn;   ///< where the next token goes; null = nowhere,
  std::span<const ops::Draw> draws;  ///< and how it is drawn.
  /// What is changed of the logits before, at most kMaxLogitChanges in all,
  std::span<const std::span<const ops::LogitChange>> changes;
  std::span<ops::DrawnLogprobs* const> logprobs;  ///< and where log probabilities go; null = nowhere.
};

/// The decoder-only transformer that a ModelConfig describes, on the device of a stream. Buffers are sized once for
/// `max_tokens`.
class Decoder {
 public:
  static Result<std::unique_ptr<Decoder>> create(const ModelConfig& config, const DecoderWeights& weights,
                                                 int64_t max_tokens, Stream stream);

  /// Returns when the logits and tokens are there.
  Status run(const DecoderPass& pass, LayerObserver* observer);

  /// Rows of a pass that can be captured.
  int64_t max_captured_rows() const { return head_rows_; }
  GraphCache& graphs() { return graphs_; }
  const GraphCache& graphs() const { return graphs_; }
  void set_parts(PassParts parts) { parts_ = parts; }

 private:
  Decoder(const ModelConfig& config, const DecoderWeights& weights, Stream stream)
      : config_(config), weights_(weights), stream_(stream) {}

  Status allocate(int64_t max_tokens);
  Status create_ropes(int64_t max_tokens);
  Status create_experts_workspace(int64_t max_tokens);
  Status send_tokens(const DecoderPass& pass);
  Status run_layers(int64_t num_tokens, std::span<const PassSegment> segments, LayerObserver* observer);
  /// Lists what is changed of the logits. Memory for it and for log probabilities is made when first needed.
  Status send_changes(const DecoderPass& pass);
  Status run_captured(const DecoderPass& pass, const StepShape& shape);
  Status attention(int32_t layer, int64_t num_tokens, std::span<const PassSegment> segments, LayerObserver* observer);
  /// What a segment's heads undergo before attention; `observed`: keys and values, too, are left where they were.
  attn::HeadPreparation head_preparation(int32_t layer, const PassSegment& segment, bool observed);
  Status feed_forward(int32_t layer, int64_t num_tokens);
  /// The last product of a block, and what its result passes on its way to the residual stream; bias and norm may be
  /// empty.
  struct BlockOutput {
    ops::Linear* product = nullptr;
    const void* x = nullptr;
    const DeviceBuffer* bias = nullptr;
    const DeviceBuffer* post_norm = nullptr;
  };
  Status add_block(const BlockOutput& block, int64_t num_tokens);
  Status head(const DecoderPass& pass);
  Status head_in_place(const DecoderPass& pass);
  /// Logits of rows, and tokens drawn from them, in the decoder's own memory.
  Status head_rows(int64_t num_rows, const int32_t* row_indices);
  Status cap_logits(float* logits, int64_t num_rows);
  /// Waits, then hands out what is wanted of the last `head_rows`; row_of(i) is where wanted row i lies.
  template <class RowOf>
  Status deliver(const DecoderPass& pass, int64_t begin, int64_t end, const RowOf& row_of);
  Status normalise(const DeviceBuffer& weight, int64_t num_rows, const int32_t* row_indices);
  Status gate_up(const LayerConfig& layer, ops::Linear& product, int64_t num_tokens);
  Status observe(int32_t layer, int64_t num_tokens, LayerObserver& observer);
  Status multiply(ops::Linear& linear, const ops::LinearArgs& args) {
    return runs_products() ? linear.run(args, stream_) : Status();
  }
  bool runs_products() const { return parts_ == PassParts::kAll || parts_ == PassParts::kProducts; }
  bool runs_attention() const { return parts_ == PassParts::kAll || parts_ == PassParts::kAttention; }
  bool runs_rest() const { return parts_ == PassParts::kAll; }
  /// A piece of activations, in elements.
  std::byte* activations(const DeviceBuffer& buffer, int64_t element) const {
    return buffer.data() + element * dtype_bytes(ops::activation_dtype(stream_));
  }

  const ModelConfig& config_;
  const DecoderWeights& weights_;
  Stream stream_;
  std::vector<ops::Rope> ropes_;    ///< One per distinct RoPE of the model.
  std::vector<size_t> layer_rope_;  ///< Index of each layer's.
  MirroredBuffer step_;
  Mirrored<int32_t> tokens_, positions_, wanted_;
  Mirrored<ops::Draw> draws_;  ///< By token of the pass.
  MirroredBuffer changes_step_;
  Mirrored<ops::LogitChange> changes_;
  DeviceBuffer hidden_;  ///< [max_tokens, hidden] fp32: rounding it would add up over the layers.
  // Activations, [max_tokens, ...].
  DeviceBuffer normed_;
  DeviceBuffer qkv_;
  DeviceBuffer q_;
  DeviceBuffer attended_;
  DeviceBuffer gate_up_;
  DeviceBuffer activated_;
  DeviceBuffer
      projected_;  ///< [max_tokens, hidden] fp32: results that are normed before, or on the CPU while, they are added.
  std::unique_ptr<ops::ExpertsWorkspace> experts_workspace_;
  DeviceBuffer logits_;      ///< [head_rows, vocabulary] fp32
  DeviceBuffer drawn_;       ///< [head_rows] drawn tokens,
  DeviceBuffer host_drawn_;  ///< and their copy for the host.
  DeviceBuffer logprobs_;    ///< [head_rows] DrawnLogprobs,
  DeviceBuffer host_logprobs_;
  DrawParts draw_parts_;  ///< Of this pass.
  ops::DeviceSampler sampler_;
  int64_t head_rows_ = 0;
  GraphCache graphs_;
  PassParts parts_ = PassParts::kAll;
};

}  // namespace kvant::engine
