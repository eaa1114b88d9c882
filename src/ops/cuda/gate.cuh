#pragma once

#include <cuda_bf16.h>

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
  // Results of approximations that would be denormal are zero.
  float power, share;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-1.4426950408889634f * z));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + power));
  return g * share * u;
}

/// As where both are stored and a kernel of its own gates them.
__device__ __forceinline__ float gated_rounded(const Gate& gate, float g, float u) {
  return gated(gate, __bfloat162float(__float2bfloat16(g)), __bfloat162float(__float2bfloat16(u)));
}

}  // namespace kvant::ops::cuda
