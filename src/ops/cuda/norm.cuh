#pragma once

// normalise_kernel: RMS norm of the fp32 residual stream to bf16 activations, a block per row. A thread holds eight
// channels at a time; the row is read twice, the second time from cache.

#include "ops/cuda/bf16_vector.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {

inline constexpr int kNormThreads = 512;

struct NormParams {
  const float* x;              // [rows, dim]
  const int32_t* row_indices;  // [grid] or null
  const float* weight;         // [dim]
  __nv_bfloat16* out;          // [grid, dim]
  int32_t dim;                 // multiple of 8
  float epsilon;
};

namespace detail {

__device__ __forceinline__ float block_sum(float x) {
  __shared__ float sums[kNormThreads / 32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f);
}

}  // namespace detail

__global__ void __launch_bounds__(kNormThreads) normalise_kernel(const __grid_constant__ NormParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t row = params.row_indices == nullptr ? blockIdx.x : params.row_indices[blockIdx.x];
  const auto* x = reinterpret_cast<const float4*>(params.x + row * params.dim);
  const int32_t quads = params.dim / 4;
  float sum = 0.0f;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < quads; i += static_cast<int32_t>(blockDim.x)) {
    const float4 value = x[i];
    sum += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
  }
  const float scale = 1.0f / sqrtf(detail::block_sum(sum) / static_cast<float>(params.dim) + params.epsilon);
  const auto* weight = reinterpret_cast<const float4*>(params.weight);
  auto* out = reinterpret_cast<Bf16x8*>(params.out + static_cast<int64_t>(blockIdx.x) * params.dim);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < quads / 2; i += static_cast<int32_t>(blockDim.x)) {
    const float4 a = x[2 * i], b = x[2 * i + 1], wa = weight[2 * i], wb = weight[2 * i + 1];
    out[i] = pack({a.x * scale * wa.x, a.y * scale * wa.y, a.z * scale * wa.z, a.w * scale * wa.w, b.x * scale * wb.x,
                   b.y * scale * wb.y, b.z * scale * wb.z, b.w * scale * wb.w});
  }
}

struct NormAddParams {
  const float* x;       // [grid, dim]
  const float* weight;  // [dim]
  float* sum;           // [grid, dim]
  int32_t dim;          // multiple of 4
  float epsilon;
};

/// The norm of a block's output, added to the residual stream.
__global__ void __launch_bounds__(kNormThreads) normalise_add_kernel(const __grid_constant__ NormAddParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * params.dim;
  const auto* x = reinterpret_cast<const float4*>(params.x + first);
  const int32_t quads = params.dim / 4;
  float sum = 0.0f;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < quads; i += static_cast<int32_t>(blockDim.x)) {
    const float4 value = x[i];
    sum += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
  }
  const float scale = 1.0f / sqrtf(detail::block_sum(sum) / static_cast<float>(params.dim) + params.epsilon);
  const auto* weight = reinterpret_cast<const float4*>(params.weight);
  auto* to = reinterpret_cast<float4*>(params.sum + first);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < quads; i += static_cast<int32_t>(blockDim.x)) {
    const float4 value = x[i], w = weight[i], before = to[i];
    to[i] = make_float4(before.x + value.x * scale * w.x, before.y + value.y * scale * w.y,
                        before.z + value.z * scale * w.z, before.w + value.w * scale * w.w);
  }
}

}  // namespace kvant::ops::cuda
