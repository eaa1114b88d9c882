#pragma once

#include <cstdint>

namespace kvant::ops {

/// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)). `out` may alias either input.
void silu_mul(const float* gate, const float* up, int64_t count, float* out);

}  // namespace kvant::ops
