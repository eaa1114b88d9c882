#pragma once

#include "ops/activation.h"

namespace kvant::ops::cuda {

/// All kinds are g sigmoid(z) u: one exponential and one division, however many kinds a kernel chooses from.
__device__ __forceinline__ float gated(const Gate& gate, float g, float u) {
  float z = g;
  switch (gate.kind) {
    case GateKind::kSilu: break;
    case GateKind::kGeluTanh:
      // (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)), y = sqrt(2 / pi) (g + 0.044715 g^3)
      z = 1.5957691216057308f * (g + 0.044715f * g * g * g);
      break;
    case GateKind::kClampedSwish:
      g = fminf(g, gate.limit);
      u = fminf(fmaxf(u, -gate.limit), gate.limit) + 1.0f;
      z = 1.702f * g;
      break;
  }
  return g / (1.0f + __expf(-z)) * u;
}

}  // namespace kvant::ops::cuda
