#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/profile.h"
#include "engine/runner/runner.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// Gathers keys and values of a calibration run and turns them into a profile.
class KeyStatistics : public LayerObserver {
 public:
  /// Room for `max_tokens` tokens.
  KeyStatistics(const ModelConfig& config, int64_t max_tokens);

  void observe(int32_t layer, int64_t num_tokens, const float* q, const float* k, int64_t k_token_stride,
               const float* v, int64_t v_token_stride) override;

  /// Layers of the profile; its other fields are the caller's.
  Result<KvProfile> finish(Stream stream) const;
  /// engine::score_noise of every layer under that profile.
  Result<std::vector<float>> score_noise(const KvProfile& profile, Stream stream) const;

 private:
  struct Layer {
    std::vector<float> keys;            ///< [tokens, kv_heads, head_dim_k]
    std::vector<double> query_squares;  ///< [kv_heads, head_dim_k], summed over tokens and the heads of a group
    std::vector<float> value_amax;      ///< [kv_heads]
    int64_t tokens = 0;
  };
  Result<LayerProfile> finish_layer(const LayerConfig& config, const Layer& layer, Stream stream) const;

  const ModelConfig& config_;
  std::vector<Layer> layers_;
};

}  // namespace kvant::engine
