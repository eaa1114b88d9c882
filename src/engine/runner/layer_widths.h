#pragma once

#include <cstdint>

#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// Elements of a token's activations in a layer.
struct LayerWidths {
  int64_t q = 0;
  int64_t k = 0;
  int64_t v = 0;
  int64_t qkv() const { return q + k + v; }
  int64_t attended = 0;
};

inline LayerWidths layer_widths(const LayerConfig& layer) {
  return {.q = int64_t{layer.num_q_heads} * layer.head_dim_k,
          .k = int64_t{layer.num_kv_heads} * layer.head_dim_k,
          .v = int64_t{layer.num_kv_heads} * layer.head_dim_v,
          .attended = int64_t{layer.num_q_heads} * layer.head_dim_v};
}

}  // namespace kvant::engine
