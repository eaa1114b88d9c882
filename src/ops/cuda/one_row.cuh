#pragma once

// one_row_kernel: y = W x. A warp owns two outputs and reads their weights once, 16 bytes a lane, eight loads in
// flight, the first ones before the kernel before this one has ended; x comes from cache. Sums are fp32, per lane, then
// over the warp.

#include <cstdint>

#include "ops/cuda/bf16_vector.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/linear.h"

namespace kvant::ops::cuda {

struct OneRowParams {
  const Bf16x8* weight;  // [out_features, vectors]
  const Bf16x8* x;       // [vectors]
  void* y;               // [out_features]
  int32_t out_features;
  int32_t vectors;  // in_features / 8
  LinearOutput output;
};

struct OneRowTraits {
  static constexpr int kWarps = 8;
  static constexpr int kOutputs = 2;  // of a warp
  static constexpr int kUnroll = 4;   // vectors of an output in flight
};

namespace detail {

/// Read once: not worth a place in the first-level cache.
__device__ __forceinline__ Bf16x8 load_streaming(const Bf16x8* from) {
  const int4 bits = __ldcs(reinterpret_cast<const int4*>(from));
  return *reinterpret_cast<const Bf16x8*>(&bits);
}

__device__ __forceinline__ void store_output(const OneRowParams& params, int32_t index, float value) {
  switch (params.output) {
    case LinearOutput::kActivations: static_cast<__nv_bfloat16*>(params.y)[index] = __float2bfloat16(value); break;
    case LinearOutput::kF32: static_cast<float*>(params.y)[index] = value; break;
    case LinearOutput::kAddF32: static_cast<float*>(params.y)[index] += value; break;
  }
}

}  // namespace detail

template <class Traits>
__global__ void __launch_bounds__(Traits::kWarps * 32) one_row_kernel(const __grid_constant__ OneRowParams params) {
  constexpr int kOutputs = Traits::kOutputs, kUnroll = Traits::kUnroll;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t first = static_cast<int32_t>(blockIdx.x * Traits::kWarps + threadIdx.x / 32) * kOutputs;
  if (first >= params.out_features) return;
  // An odd last output is read twice and written once.
  const int32_t last = params.out_features - 1;
  const Bf16x8* weights[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) weights[o] = params.weight + int64_t{min(first + o, last)} * params.vectors;

  float sums[kOutputs] = {};
  for (int32_t base = lane; base < params.vectors; base += 32 * kUnroll) {
    Bf16x8 w[kOutputs][kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int o = 0; o < kOutputs; ++o)
        if (base + 32 * u < params.vectors) w[o][u] = detail::load_streaming(weights[o] + base + 32 * u);
    if (base == lane) wait_for_previous_kernel();
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + 32 * u >= params.vectors) break;
      float x[8];
      unpack(params.x[base + 32 * u], x);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        float wide[8];
        unpack(w[o][u], wide);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[o] = fmaf(wide[i], x[i], sums[o]);
      }
    }
  }
  allow_next_kernel();
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const float sum = warp_sum(sums[o]);
    if (lane == 0 && first + o <= last) detail::store_output(params, first + o, sum);
  }
}

}  // namespace kvant::ops::cuda
