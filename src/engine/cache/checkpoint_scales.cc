#include "engine/cache/checkpoint_scales.h"

#include "engine/cache/profile.h"

namespace kvant::engine {

int32_t count_used_scales(const CheckpointScales& scales, std::span<const LayerGroup> groups) {
  int32_t used = 0;
  for (const LayerGroup& group : groups) {
    for (const int32_t index : group.layers) {
      const CheckpointScales::Layer& layer = scales.layers[static_cast<size_t>(index)];
      if (attn::info(group.spec.k_format).quantised) used += layer.k_tensors;
      if (attn::info(group.spec.v_format).quantised) used += layer.v_tensors;
    }
  }
  return used;
}

float scale_between(attn::KvFormat from, attn::KvFormat to, float scale) {
  if (from == to || !attn::info(to).quantised) return attn::info(to).quantised ? scale : 1.0f;
  return scale * (scale_for_format(to, 1.0f) / scale_for_format(from, 1.0f));
}

}  // namespace kvant::engine
