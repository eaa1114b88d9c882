#pragma once

#include <cstdint>

#include "kvant/core/stream.h"

namespace kvant::ops {

/// How the two halves of a feed-forward layer meet.
enum class GateKind : uint8_t {
  kSilu,          ///< silu(gate) * up, silu(x) = x / (1 + exp(-x))
  kGeluTanh,      ///< gelu(gate) * up, the tanh form of gelu
  kClampedSwish,  ///< g / (1 + exp(-1.702 g)) * (u + 1), g = min(gate, limit), u = clamp(up, -limit, limit)
};

struct Gate {
  GateKind kind = GateKind::kSilu;
  float limit = 0.0f;  ///< kClampedSwish
};

/// out[i] = silu(gate[i]) * up[i]. `out` may alias either input.
void silu_mul(const float* gate, const float* up, int64_t count, float* out);

/// Any gate over the output [rows, 2 * size] of a fused projection, gate channels first; out is [rows, size].
void gate_rows(const Gate& gate, const float* gate_up, int64_t rows, int64_t size, float* out, Stream stream);

/// out[i] = a[i] + b[i]. `out` may alias either input.
void add(const float* a, const float* b, int64_t count, float* out);

/// x[i] = cap * tanh(x[i] / cap), rows side by side.
void soft_cap_rows(float* x, int64_t rows, int64_t size, float cap, Stream stream);

}  // namespace kvant::ops
