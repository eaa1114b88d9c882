#include "engine/cache/checkpoint_scales.h"

#include "engine/cache/profile.h"

namespace kvant::engine {

float scale_between(attn::KvFormat from, attn::KvFormat to, float scale) {
  if (from == to || !attn::info(to).quantised) return attn::info(to).quantised ? scale : 1.0f;
  return scale * (scale_for_format(to, 1.0f) / scale_for_format(from, 1.0f));
}

}  // namespace kvant::engine
