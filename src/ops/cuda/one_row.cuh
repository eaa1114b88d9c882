#pragma once

// one_row_kernel: y = W x. A block owns four outputs and its warps share each of their rows, so that all of a short
// row is asked for at once and blocks come and go in many small waves: a warp that walked a row alone would wait for
// memory once a step with nothing else to do. Weights are read once, 16 bytes a lane, the first ones before the kernel
// before this one has ended; x comes from cache. Sums are fp32, per lane, over the warp, then over warps in order.

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

template <int kBlockWarps>
struct OneRowTraits {
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kOutputs = 4;  // of a block
  static constexpr int kUnroll = 2;   // vectors of an output that a lane has in flight
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
    case LinearOutput::kGated: break;  // not offered
  }
}

}  // namespace detail

template <class Traits>
__global__ void __launch_bounds__(Traits::kWarps * 32) one_row_kernel(const __grid_constant__ OneRowParams params) {
  constexpr int kWarps = Traits::kWarps, kOutputs = Traits::kOutputs, kUnroll = Traits::kUnroll;
  constexpr int kThreads = kWarps * 32;
  __shared__ float partial[kWarps][kOutputs];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto first = static_cast<int32_t>(blockIdx.x) * kOutputs;
  // Outputs past the last are read as the last and not written.
  const int32_t last = params.out_features - 1;
  const Bf16x8* weights[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) weights[o] = params.weight + int64_t{min(first + o, last)} * params.vectors;

  float sums[kOutputs] = {};
  bool waited = false;
  for (int32_t base = thread; base < params.vectors; base += kThreads * kUnroll) {
    Bf16x8 w[kOutputs][kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int o = 0; o < kOutputs; ++o)
        if (base + kThreads * u < params.vectors) w[o][u] = detail::load_streaming(weights[o] + base + kThreads * u);
    if (!waited) wait_for_previous_kernel();
    waited = true;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + kThreads * u >= params.vectors) break;
      float x[8];
      unpack(params.x[base + kThreads * u], x);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        float wide[8];
        unpack(w[o][u], wide);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[o] = fmaf(wide[i], x[i], sums[o]);
      }
    }
  }
  // Threads past the end of a short row wait as well: each may write.
  if (!waited) wait_for_previous_kernel();
  allow_next_kernel();
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const float sum = warp_sum(sums[o]);
    if (thread % 32 == 0) partial[thread / 32][o] = sum;
  }
  __syncthreads();
  if (thread >= kOutputs || first + thread > last) return;
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp][thread];
  detail::store_output(params, first + thread, sum);
}

}  // namespace kvant::ops::cuda
