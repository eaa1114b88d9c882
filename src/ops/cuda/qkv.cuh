#pragma once

// split_qkv_kernel: one warp per (token, head) of the fused projection. Adds the bias, norms queries and keys, turns
// them by RoPE, and writes queries side by side; keys and values stay where they are. A head goes through shared memory
// because RoPE pairs channels that lie half a rotation apart.

#include "ops/cuda/bf16_vector.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {

inline constexpr int kQkvWarps = 4;
inline constexpr int kMaxQkvHeadDim = 512;

struct QkvParams {
  __nv_bfloat16* qkv;    // [num_tokens, width]
  __nv_bfloat16* q;      // [num_tokens, num_q_heads, head_dim_k]
  const float* bias;     // [width] or null
  const float* q_norm;   // [head_dim_k] or null
  const float* k_norm;   // [head_dim_k] or null
  const float* cosines;  // [num_tokens, num_pairs]
  const float* sines;
  int64_t num_heads_total;  // num_tokens * heads
  int32_t heads;            // of a token that are walked: q, k, and v when there is a bias
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim_k;
  int32_t head_dim_v;
  int32_t width;
  int32_t num_pairs;  // of RoPE
  bool halves;        // RoPE pairs (i, i + num_pairs), else (2 i, 2 i + 1)
  float epsilon;
};

namespace detail {

/// A head's norm weights, spread over a warp.
struct HeadWeights {
  float values[kMaxQkvHeadDim / 32];

  __device__ __forceinline__ void load(const float* weight, int32_t dim) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kMaxQkvHeadDim / 32; ++i)
      if (lane + 32 * i < dim) values[i] = weight[lane + 32 * i];
  }
};

__device__ __forceinline__ void norm_head(const HeadWeights& weight, int32_t dim, float epsilon, float* x) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  float sum = 0.0f;
  for (int32_t i = lane; i < dim; i += 32) sum += x[i] * x[i];
  const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + epsilon);
#pragma unroll
  for (int i = 0; i < kMaxQkvHeadDim / 32; ++i)
    if (lane + 32 * i < dim) x[lane + 32 * i] = x[lane + 32 * i] * scale * weight.values[i];
  __syncwarp();
}

__device__ __forceinline__ void turn_head(const QkvParams& params, int64_t token, float* x) {
  const float* cosines = params.cosines + token * params.num_pairs;
  const float* sines = params.sines + token * params.num_pairs;
  for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < params.num_pairs; i += 32) {
    float& first = x[params.halves ? i : 2 * i];
    float& second = x[params.halves ? i + params.num_pairs : 2 * i + 1];
    const float a = first, b = second;
    first = a * cosines[i] - b * sines[i];
    second = b * cosines[i] + a * sines[i];
  }
  __syncwarp();
}

}  // namespace detail

__global__ void __launch_bounds__(kQkvWarps * 32) split_qkv_kernel(const __grid_constant__ QkvParams params) {
  __shared__ float rows[kQkvWarps][kMaxQkvHeadDim];
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kQkvWarps + threadIdx.x / 32;
  if (index >= params.num_heads_total) return;  // Other warps of the block wait.
  const int64_t token = index / params.heads;
  const auto head = static_cast<int32_t>(index - token * params.heads);
  const bool is_q = head < params.num_q_heads;
  const bool is_v = head >= params.num_q_heads + params.num_kv_heads;
  const int32_t dim = is_v ? params.head_dim_v : params.head_dim_k;
  const int32_t first_v = (params.num_q_heads + params.num_kv_heads) * params.head_dim_k;
  const int32_t column =
      is_v ? first_v + (head - params.num_q_heads - params.num_kv_heads) * params.head_dim_v : head * params.head_dim_k;
  const float* norm = is_v ? nullptr : is_q ? params.q_norm : params.k_norm;
  detail::HeadWeights weights;
  if (norm != nullptr) weights.load(norm, dim);
  wait_for_previous_kernel();
  allow_next_kernel();
  __nv_bfloat16* from = params.qkv + token * params.width + column;
  float* x = rows[threadIdx.x / 32];
  for (int32_t i = lane; i < dim; i += 32)
    x[i] = __bfloat162float(from[i]) + (params.bias == nullptr ? 0.0f : params.bias[column + i]);
  __syncwarp();

  if (norm != nullptr) detail::norm_head(weights, dim, params.epsilon, x);
  if (!is_v) detail::turn_head(params, token, x);

  __nv_bfloat16* to =
      is_q ? params.q + (token * params.num_q_heads + head) * static_cast<int64_t>(params.head_dim_k) : from;
  for (int32_t i = lane; i < dim; i += 32) to[i] = __float2bfloat16(x[i]);
}

}  // namespace kvant::ops::cuda
