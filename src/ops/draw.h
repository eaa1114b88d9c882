#pragma once

#include <cstdint>

namespace kvant::ops {

/// How one token is drawn from logits as they are, in a form that can be sent to a device. See SamplingParams.
struct Draw {
  uint64_t seed = 0;
  uint64_t step = 0;         ///< Position of the token in its sequence.
  float temperature = 0.0f;  ///< 0 = the most likely token.
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
};

}  // namespace kvant::ops
