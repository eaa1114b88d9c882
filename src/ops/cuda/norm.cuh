#pragma once

// normalise_kernel: RMS norm of the fp32 residual stream to bf16 activations, a block per row. A thread holds eight
// channels at a time, and those of rows of usual width until they are written; the weights are on their way before the
// kernel before this one has ended.

#include "ops/cuda/bf16_vector.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {

inline constexpr int kNormThreads = 512;
/// Of many rows of up to 4 096 channels: products of as many leave registers for so many beside their own, so that
/// neither waits for the other's blocks to end.
inline constexpr int kManyRowsNormThreads = 256;
/// Pieces of eight channels that a thread holds: rows of 8 192 channels. What is beyond is read twice.
inline constexpr int kNormHeld = 2;

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

/// Eight channels.
struct NormPiece {
  float4 a, b;

  __device__ __forceinline__ float square_sum() const {
    return a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w + b.x * b.x + b.y * b.y + b.z * b.z + b.w * b.w;
  }
  __device__ __forceinline__ Bf16x8 scaled(float scale, const NormPiece& weight) const {
    return pack({a.x * scale * weight.a.x, a.y * scale * weight.a.y, a.z * scale * weight.a.z, a.w * scale * weight.a.w,
                 b.x * scale * weight.b.x, b.y * scale * weight.b.y, b.z * scale * weight.b.z,
                 b.w * scale * weight.b.w});
  }
};

}  // namespace detail

__global__ void __launch_bounds__(kNormThreads) normalise_kernel(const __grid_constant__ NormParams params) {
  using detail::NormPiece;
  const auto thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t pieces = params.dim / 8;
  const auto* weight = reinterpret_cast<const NormPiece*>(params.weight);
  NormPiece w[kNormHeld] = {}, held[kNormHeld] = {};
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i)
    if (thread + i * threads < pieces) w[i] = weight[thread + i * threads];
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = params.row_indices == nullptr ? blockIdx.x : params.row_indices[blockIdx.x];
  const auto* x = reinterpret_cast<const NormPiece*>(params.x + row * params.dim);
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i)
    if (thread + i * threads < pieces) held[i] = x[thread + i * threads];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) sum += held[i].square_sum();
  const int32_t beyond = thread + kNormHeld * threads;
  for (int32_t i = beyond; i < pieces; i += threads) sum += x[i].square_sum();
  const float scale = 1.0f / sqrtf(detail::block_sum(sum) / static_cast<float>(params.dim) + params.epsilon);
  auto* out = reinterpret_cast<Bf16x8*>(params.out + static_cast<int64_t>(blockIdx.x) * params.dim);
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i)
    if (thread + i * threads < pieces) out[thread + i * threads] = held[i].scaled(scale, w[i]);
  for (int32_t i = beyond; i < pieces; i += threads) out[i] = x[i].scaled(scale, weight[i]);
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
