#pragma once

// merge_kernel: partial attention results over disjoint keys, one warp a row, parts in their order.
//   outs [parts][rows, head_dim], lses [parts][rows] natural log, out [rows, head_dim].
// A part without keys has weight 0 and its output is not looked at; no part with keys gives 0 and -inf.

#include <cmath>

#include "attn/cuda/common/attention_math.cuh"
#include "attn/cuda/generic/merge.h"

namespace kvant::attn::cuda {

inline constexpr int kMergeThreads = 128;

__device__ __forceinline__ void store_one(void* to, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(to)[index] = value; return;
    case DType::kF16: static_cast<__half*>(to)[index] = __float2half_rn(value); return;
    case DType::kBf16: static_cast<__nv_bfloat16*>(to)[index] = __float2bfloat16_rn(value); return;
  }
}

__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ MergeParams params) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kMergeThreads / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= params.num_rows) return;
  float top = -INFINITY;
  for (int32_t part = 0; part < params.num_parts; ++part) top = fmaxf(top, params.lses[part][row]);
  float sum = 0.0f;
  for (int32_t part = 0; part < params.num_parts; ++part) {
    const float lse = params.lses[part][row];
    if (lse != -INFINITY) sum += expf(lse - top);
  }
  const bool empty = top == -INFINITY && sum == 0.0f;
  if (params.lse != nullptr && lane == 0) params.lse[row] = empty ? -INFINITY : top + logf(sum);

  float scale = empty ? 0.0f : 1.0f / sum;
  if (!empty && params.sinks != nullptr) {
    const float sink = params.sinks[row % params.num_q_heads];
    const float common = fmaxf(top, sink);
    scale = expf(top - common) / (sum * expf(top - common) + expf(sink - common));
  }
  for (int32_t d = lane; d < params.head_dim; d += 32) {
    const int64_t at = row * params.head_dim + d;
    float value = 0.0f;
    for (int32_t part = 0; part < params.num_parts; ++part) {
      const float lse = params.lses[part][row];
      if (lse != -INFINITY) value = fmaf(expf(lse - top), params.outs[part][at], value);
    }
    store_one(params.out, params.out_dtype, at, value * scale);
  }
}

Status launch_merge(const MergeParams& params, cudaStream_t stream) {
  constexpr int64_t kRows = kMergeThreads / 32;
  const int64_t blocks = (params.num_rows + kRows - 1) / kRows;
  if (blocks == 0) return {};
  merge_kernel<<<static_cast<unsigned>(blocks), kMergeThreads, 0, stream>>>(params);
  if (cudaPeekAtLastError() != cudaSuccess) {
    return {StatusCode::kCudaError,
            std::string("the launch of the merge kernel failed: ") + cudaGetErrorString(cudaGetLastError())};
  }
  return {};
}

}  // namespace kvant::attn::cuda
