#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/kv_cache_set.h"
#include "engine/runner/decoder_weights.h"
#include "engine/runner/runner.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/core/thread_pool.h"
#include "kvant/engine/model_config.h"
#include "ops/rope.h"

namespace kvant::engine {

/// Tokens of one cache set within a pass. Its step has begun.
struct PassSegment {
  KvCacheSet* cache = nullptr;
  int64_t first_token = 0;
  int64_t num_tokens = 0;
};

/// One trip of a batch of tokens through all layers.
struct DecoderPass {
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;  ///< One per token.
  std::span<const PassSegment> segments;
  std::span<const int32_t> wanted;  ///< Token indices whose logits are wanted,
  std::span<float* const> logits;   ///< and where each goes: [vocabulary].
};

/// The decoder-only transformer that a ModelConfig describes. Buffers are sized once for `max_tokens`.
class Decoder {
 public:
  Decoder(const ModelConfig& config, const DecoderWeights& weights, int64_t max_tokens, ThreadPool& pool);

  Status run(const DecoderPass& pass, LayerObserver* observer);

 private:
  Status attention(int32_t layer, const DecoderPass& pass, LayerObserver* observer);
  void feed_forward(int32_t layer, int64_t num_tokens);
  void head(const DecoderPass& pass);
  void embed(std::span<const int32_t> tokens);
  void normalise(const float* rows, int64_t num_rows, const std::vector<float>& weight, float* out);
  /// From the fused projection: biases, RoPE, queries side by side.
  void prepare_qkv(const LayerConfig& layer, const DecoderLayer& weights, const ops::Rope& rope, int64_t num_tokens);

  const ModelConfig& config_;
  const DecoderWeights& weights_;
  Stream stream_;
  std::vector<ops::Rope> ropes_;    ///< One per distinct RoPE of the model.
  std::vector<size_t> layer_rope_;  ///< Index of each layer's.
  // Activations, [max_tokens, ...].
  std::vector<float> hidden_;
  std::vector<float> normed_;
  std::vector<float> qkv_;
  std::vector<float> q_;
  std::vector<float> attended_;
  std::vector<float> projected_;
  std::vector<float> gate_up_;
  std::vector<float> activated_;
};

}  // namespace kvant::engine
