#pragma once

// How a warp of few_rows_kernel writes what it has of the product.

#include <cstdint>

#include <cuda_bf16.h>

#include "ops/cuda/few_rows_params.cuh"
#include "ops/cuda/gate.cuh"

namespace kvant::ops::cuda::detail {

/// Eight outputs of two rows a lane to two outputs of eight rows a lane, as bf16.
__device__ __forceinline__ uint32_t transposed(float even, float odd) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(even, odd);
  uint32_t bits = *reinterpret_cast<const uint32_t*>(&pair);
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(bits));
  return bits;
}

/// Sums of eight gate channels and their up channels, and rows row + 0..7. Outputs are counted as without gates.
__device__ __forceinline__ void store_gated(const FewRowsParams& params, int32_t first, int32_t end, int32_t row,
                                            const float (&sums)[4]) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const uint32_t both =
      transposed(gated_rounded(params.gate, sums[0], sums[2]), gated_rounded(params.gate, sums[1], sums[3]));
  const int32_t width = params.out_features / 2, output = first / 2 + lane % 4 * 2;
  if (row + lane / 4 >= params.num_rows || first >= end) return;
  *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(params.y) + int64_t{row + lane / 4} * width + output) = both;
}

/// Sums of outputs first + 0..15 before `end` and rows row + 0..7.
__device__ __forceinline__ void store_quad(const FewRowsParams& params, int32_t first, int32_t end, int32_t row,
                                           const float (&sums)[4]) {
  if (params.output == LinearOutput::kGated) return store_gated(params, first, end, row, sums);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  if (params.output == LinearOutput::kActivations) {
    const uint32_t low = transposed(sums[0], sums[1]), high = transposed(sums[2], sums[3]);
    const int32_t output = first + lane % 4 * 2;
    if (row + lane / 4 >= params.num_rows) return;
    auto* y = static_cast<__nv_bfloat16*>(params.y) + int64_t{row + lane / 4} * params.out_features + output;
    if (output < end) *reinterpret_cast<uint32_t*>(y) = low;
    if (output + 8 < end) *reinterpret_cast<uint32_t*>(y + 8) = high;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t token = row + lane % 4 * 2 + i % 2, output = first + lane / 4 + i / 2 * 8;
    if (token >= params.num_rows || output >= end) continue;
    float* y = static_cast<float*>(params.y) + int64_t{token} * params.out_features + output;
    // One addition each, and nothing to wait for.
    if (params.output == LinearOutput::kAddF32) {
      asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(y), "f"(sums[i]) : "memory");
    } else {
      *y = sums[i];
    }
  }
}

/// All that a warp has, quads in turn moved to one place: unrolled, this would be thousands of instructions that run
/// once, each fetched when its turn comes.
template <class Traits>
__device__ __forceinline__ void store_sums(const FewRowsParams& params, int32_t first, int32_t end,
                                           Sums<Traits>& sums) {
#pragma unroll 1
  for (int q = 0; q < Traits::kQuads; ++q) {
    store_quad(params, first, end, q * 8, sums[0]);
#pragma unroll
    for (int i = 1; i < Traits::kQuads; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i - 1][e] = sums[i][e];
  }
}

}  // namespace kvant::ops::cuda::detail
