#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/layer_groups.h"
#include "kvant/attn/kv_format.h"

namespace kvant::engine {

/// Scales of raw keys and values that came with a checkpoint.
struct CheckpointScales {
  struct Layer {
    std::vector<float> k;  ///< One, or one per KV head. Never empty.
    std::vector<float> v;
    int32_t k_tensors = 0;  ///< Tensors that they were read from; 0 = none, and the scale is 1.
    int32_t v_tensors = 0;
  };

  attn::KvFormat format = attn::KvFormat::kE4m3;  ///< What they were made for; other formats take them in proportion.
  std::vector<Layer> layers;                      ///< Of every layer of the model.

  int32_t num_tensors() const {
    int32_t count = 0;
    for (const Layer& layer : layers) count += layer.k_tensors + layer.v_tensors;
    return count;
  }
};

/// How many of the scale tensors a cache of these groups applies.
int32_t count_used_scales(const CheckpointScales& scales, std::span<const LayerGroup> groups);

/// A scale made for one format with the same headroom in another; 1 for formats without a global scale.
float scale_between(attn::KvFormat from, attn::KvFormat to, float scale);

}  // namespace kvant::engine
