#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/models/model_source.h"

namespace kvant::engine {

/// Stems of a layer's tensor names: "STEM.weight", "STEM.bias".
struct LayerNames {
  std::string attention_norm;
  std::string q, k, v, output;
  std::string q_norm, k_norm;
  std::string sinks;  ///< The whole name.
  std::string post_attention_norm, ffn_norm, post_ffn_norm;
  std::string gate, up, down;
};

/// A checkpoint's tensors under its own names, as a file format gives them.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  virtual Result<WeightView> matrix(const std::string& name, int64_t rows, int64_t columns) const = 0;
  virtual Result<WeightView> vector(const std::string& name, int64_t size) const = 0;
  /// The weight of a norm as it multiplies.
  virtual Result<WeightView> norm(const std::string& name, int64_t size) const = 0;
  /// Router and experts of a layer into `out`.
  virtual Status experts(int32_t layer, const ModelConfig& config, LayerWeights& out) const = 0;
};

/// Everything that the layer's configuration says it has.
Result<LayerWeights> read_layer_weights(int32_t layer, const ModelConfig& config, const LayerNames& names,
                                        const WeightStore& store);

}  // namespace kvant::engine
