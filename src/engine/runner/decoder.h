#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device_memory.h"
#include "engine/cache/kv_cache_set.h"
#include "engine/runner/decoder_weights.h"
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
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;  ///< One per token.
  std::span<const PassSegment> segments;
  std::span<const int32_t> wanted;  ///< Token indices whose logits are wanted,
  std::span<float* const> logits;   ///< and where each goes: [vocabulary].
};

/// The decoder-only transformer that a ModelConfig describes, on the device of a stream. Buffers are sized once for
/// `max_tokens`.
class Decoder {
 public:
  static Result<std::unique_ptr<Decoder>> create(const ModelConfig& config, const DecoderWeights& weights,
                                                 int64_t max_tokens, Stream stream);

  /// Returns when the logits are there.
  Status run(const DecoderPass& pass, LayerObserver* observer);

 private:
  Decoder(const ModelConfig& config, const DecoderWeights& weights, Stream stream)
      : config_(config), weights_(weights), stream_(stream) {}

  Status allocate(int64_t max_tokens);
  Status create_ropes(int64_t max_tokens);
  Status send_tokens(const DecoderPass& pass);
  Status attention(int32_t layer, const DecoderPass& pass, LayerObserver* observer);
  Status feed_forward(int32_t layer, int64_t num_tokens);
  Status head(const DecoderPass& pass);
  Status head_on_cpu(const DecoderPass& pass);
  Status head_on_device(const DecoderPass& pass);
  Status normalise(const DeviceBuffer& weight, int64_t num_rows, const int32_t* row_indices);
  Status observe(int32_t layer, int64_t num_tokens, LayerObserver& observer);
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
  DeviceBuffer hidden_;  ///< [max_tokens, hidden] fp32: rounding it would add up over the layers.
  // Activations, [max_tokens, ...].
  DeviceBuffer normed_;
  DeviceBuffer qkv_;
  DeviceBuffer q_;
  DeviceBuffer attended_;
  DeviceBuffer gate_up_;
  DeviceBuffer activated_;
  DeviceBuffer projected_;  ///< CPU: scratch of products that are added.
  DeviceBuffer logits_;     ///< CUDA: [head rows, vocabulary] fp32
  int64_t head_rows_ = 0;
};

}  // namespace kvant::engine
