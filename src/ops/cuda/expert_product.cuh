#pragma once

// expert_product_kernel: rows of the batch times the weights of the experts they use. A block takes one tile of rows of
// one expert and 64 outputs; each of its four warps multiplies the tile's 16 rows by 16 outputs with tensor cores. Rows
// and weights go through shared memory 64 inputs at a time.

#include <cstdint>

#include <mma.h>

#include "ops/cuda/expert_routing.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {

struct ExpertProductTraits {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kOutputs = kWarps * 16;
  static constexpr int kInputs = 64;
  // 16 bytes more than a power of two: rows start in different banks.
  static constexpr int kStride = kInputs + 8;
  static constexpr int kSumStride = kOutputs + 4;
  static_assert(kExpertTileRows == 16, "a tile is one fragment high");

  struct Operands {
    __nv_bfloat16 x[kExpertTileRows][kStride];
    __nv_bfloat16 weights[kOutputs][kStride];
  };
  union SharedStorage {
    Operands operands;
    float sums[kExpertTileRows][kSumStride];
  };
};

template <class Output>
struct ExpertProductParams {
  const __nv_bfloat16* weights;  // [num_experts, outputs, inputs]
  const float* bias;             // [num_experts, outputs] or null
  const __nv_bfloat16* x;        // [num_pairs / x_divisor, inputs]
  Output* y;                     // [num_pairs, outputs]
  const ExpertTile* tiles;       // [gridDim.x]
  const int32_t* pairs;
  int32_t outputs;
  int32_t inputs;     // multiple of 8
  int32_t x_divisor;  // pairs of one row of x
};

namespace detail {

__device__ __forceinline__ void store_output(float value, float* to) { *to = value; }
__device__ __forceinline__ void store_output(float value, __nv_bfloat16* to) { *to = __float2bfloat16(value); }

/// Copies up to 64 inputs of a row, eight at a time; zeros past the row's end and where there is no row.
__device__ __forceinline__ void stage(const __nv_bfloat16* row, int32_t first, int32_t inputs, int32_t vector,
                                      __nv_bfloat16* to) {
  const int32_t column = first + vector * 8;
  const bool is_there = row != nullptr && column < inputs;
  *reinterpret_cast<uint4*>(to + vector * 8) =
      is_there ? *reinterpret_cast<const uint4*>(row + column) : make_uint4(0, 0, 0, 0);
}

}  // namespace detail

template <class Traits, class Output>
__global__ void __launch_bounds__(Traits::kThreads)
    expert_product_kernel(const __grid_constant__ ExpertProductParams<Output> params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  namespace wmma = nvcuda::wmma;
  // Fragments are read from multiples of 32 bytes.
  __shared__ alignas(128) typename Traits::SharedStorage shared;
  const ExpertTile tile = params.tiles[blockIdx.x];
  if (tile.count == 0) return;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread / 32;
  const int32_t first_output = static_cast<int32_t>(blockIdx.y) * Traits::kOutputs;
  const __nv_bfloat16* weights = params.weights + static_cast<int64_t>(tile.expert) * params.outputs * params.inputs;

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
  wmma::fill_fragment(sums, 0.0f);
  constexpr int kVectors = Traits::kInputs / 8;
  for (int32_t first = 0; first < params.inputs; first += Traits::kInputs) {
    for (int32_t i = thread; i < kExpertTileRows * kVectors; i += Traits::kThreads) {
      const int32_t row = i / kVectors;
      const __nv_bfloat16* from = nullptr;
      if (row < tile.count)
        from = params.x + static_cast<int64_t>(params.pairs[tile.first + row] / params.x_divisor) * params.inputs;
      detail::stage(from, first, params.inputs, i % kVectors, shared.operands.x[row]);
    }
    for (int32_t i = thread; i < Traits::kOutputs * kVectors; i += Traits::kThreads) {
      const int32_t row = i / kVectors, output = first_output + row;
      const __nv_bfloat16* from =
          output < params.outputs ? weights + static_cast<int64_t>(output) * params.inputs : nullptr;
      detail::stage(from, first, params.inputs, i % kVectors, shared.operands.weights[row]);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Traits::kInputs; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b;
      wmma::load_matrix_sync(a, &shared.operands.x[0][k], Traits::kStride);
      wmma::load_matrix_sync(b, &shared.operands.weights[warp * 16][k], Traits::kStride);
      wmma::mma_sync(sums, a, b, sums);
    }
    __syncthreads();
  }
  wmma::store_matrix_sync(&shared.sums[0][warp * 16], sums, Traits::kSumStride, wmma::mem_row_major);
  __syncthreads();
  for (int32_t i = thread; i < tile.count * Traits::kOutputs; i += Traits::kThreads) {
    const int32_t row = i / Traits::kOutputs, column = i % Traits::kOutputs, output = first_output + column;
    if (output >= params.outputs) continue;
    float value = shared.sums[row][column];
    if (params.bias != nullptr) value += params.bias[static_cast<int64_t>(tile.expert) * params.outputs + output];
    detail::store_output(value,
                         params.y + static_cast<int64_t>(params.pairs[tile.first + row]) * params.outputs + output);
  }
}

}  // namespace kvant::ops::cuda
