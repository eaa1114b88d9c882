#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace kvant::ops::cuda {

/// Eight bf16 values: what one thread reads at a time.
struct alignas(16) Bf16x8 {
  __nv_bfloat162 pairs[4];
};

__device__ __forceinline__ void unpack(const Bf16x8& from, float (&to)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __bfloat1622float2(from.pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ Bf16x8 pack(const float (&from)[8]) {
  Bf16x8 to;
#pragma unroll
  for (int i = 0; i < 4; ++i) to.pairs[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
  return to;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

}  // namespace kvant::ops::cuda
