#pragma once

// argmax_kernel: several blocks per row of logits. Each offers its best to the row's key by an atomic maximum; the last
// block of the row to arrive writes the token and clears key and counter for the next launch.

#include <cstdint>

#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {

inline constexpr int kArgmaxThreads = 512;
inline constexpr int kArgmaxBlocks = 16;  // per row

struct ArgmaxParams {
  const float* logits;       // [num_rows, vocabulary]
  int32_t* out;              // [num_rows]
  unsigned long long* keys;  // [num_rows], zero between launches
  uint32_t* arrived;         // [num_rows], zero between launches
  int32_t vocabulary;
};

namespace detail {

/// Larger for larger logits; among equals, for lower indices. NaN counts as minus infinity.
__device__ __forceinline__ unsigned long long argmax_key(float logit, int32_t index) {
  const uint32_t bits = __float_as_uint(isnan(logit) ? -INFINITY : logit);
  const uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}

__device__ __forceinline__ unsigned long long larger(unsigned long long a, unsigned long long b) {
  return a > b ? a : b;
}

}  // namespace detail

__global__ void __launch_bounds__(kArgmaxThreads) argmax_kernel(const __grid_constant__ ArgmaxParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const uint32_t row = blockIdx.y;
  const float* logits = params.logits + static_cast<int64_t>(row) * params.vocabulary;
  unsigned long long best = 0;
  for (int32_t i = static_cast<int32_t>(blockIdx.x * kArgmaxThreads + threadIdx.x); i < params.vocabulary;
       i += static_cast<int32_t>(gridDim.x * kArgmaxThreads))
    best = detail::larger(best, detail::argmax_key(logits[i], i));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    best = detail::larger(best, __shfl_xor_sync(0xffffffffu, best, distance));
  __shared__ unsigned long long bests[kArgmaxThreads / 32];
  if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kArgmaxThreads / 32; ++warp) best = detail::larger(best, bests[warp]);
  atomicMax(params.keys + row, best);
  __threadfence();
  if (atomicAdd(params.arrived + row, 1u) + 1 != gridDim.x) return;
  best = atomicExch(params.keys + row, 0ull);
  params.arrived[row] = 0;
  params.out[row] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
}

}  // namespace kvant::ops::cuda
