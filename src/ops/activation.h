#pragma once

#include <cstdint>

#include "kvant/core/stream.h"

namespace kvant::ops {

/// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)). `out` may alias either input.
void silu_mul(const float* gate, const float* up, int64_t count, float* out);

/// The same for the output [rows, 2 * size] of a fused projection, gate channels first; out is [rows, size].
void silu_mul_rows(const float* gate_up, int64_t rows, int64_t size, float* out, Stream stream);

/// out[i] = a[i] + b[i]. `out` may alias either input.
void add(const float* a, const float* b, int64_t count, float* out);

}  // namespace kvant::ops
