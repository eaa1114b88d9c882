#pragma once

// How a warp of batch_rows_kernel writes its part of the product.

#include <cstdint>

#include <cuda_bf16.h>

#include "ops/cuda/batch_rows_params.cuh"
#include "ops/cuda/gate.cuh"

namespace kvant::ops::cuda::detail {

/// A row of y where the lane's tile begins, and how many eights of outputs the tile has of it, maybe none.
struct BatchRow {
  void* y;
  int32_t index, num_quads;
  int64_t first;  // output, counted from the first row's

  __device__ __forceinline__ BatchRow(const BatchRowsParams& params, int32_t row, int32_t width, int32_t first_output)
      : y(params.y),
        index(row),
        num_quads(row < params.num_rows ? (width - first_output) / 8 : 0),
        first(int64_t{row} * width + first_output) {}
};

/// Two outputs of each quad. Four lanes that have the same row pass them on, so that each writes a quad at once.
template <int kQuads>
__device__ __forceinline__ void store_bf16(const BatchRow& row, const uint32_t (&pairs)[kQuads]) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 4);
  const bool odd = lane % 2 != 0, high = lane / 2 != 0;
#pragma unroll
  for (int q = 0; q < kQuads; q += 4) {
    const uint32_t none = 0;
    const uint32_t a = pairs[q], b = q + 1 < kQuads ? pairs[q + 1] : none, c = q + 2 < kQuads ? pairs[q + 2] : none,
                   d = q + 3 < kQuads ? pairs[q + 3] : none;
    const uint32_t ac = __shfl_xor_sync(0xffffffffu, high ? a : c, 2),
                   bd = __shfl_xor_sync(0xffffffffu, high ? b : d, 2);
    // Of two quads, what lanes 0 or 1 and 2 or 3 have.
    const uint32_t low0 = high ? ac : a, low1 = high ? bd : b, high0 = high ? c : ac, high1 = high ? d : bd;
    const uint32_t low = __shfl_xor_sync(0xffffffffu, odd ? low0 : low1, 1),
                   up = __shfl_xor_sync(0xffffffffu, odd ? high0 : high1, 1);
    const uint4 quad = odd ? make_uint4(low, low1, up, high1) : make_uint4(low0, low, high0, up);
    if (q + lane < row.num_quads && q + lane < kQuads)
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(row.y) + row.first + 8 * (q + lane)) = quad;
  }
}

/// The same of sums: each lane writes half a quad, or adds it to what is there: one addition each, and nothing to wait
/// for.
template <bool kAdd, int kQuads>
__device__ __forceinline__ void store_f32(const BatchRow& row, const float2 (&pairs)[kQuads]) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 4);
  const bool odd = lane % 2 != 0;
#pragma unroll
  for (int q = 0; q < kQuads; q += 2) {
    const float2 a = pairs[q], b = pairs[q + 1];
    const float x = __shfl_xor_sync(0xffffffffu, odd ? a.x : b.x, 1),
                y = __shfl_xor_sync(0xffffffffu, odd ? a.y : b.y, 1);
    const float4 half = odd ? make_float4(x, y, b.x, b.y) : make_float4(a.x, a.y, x, y);
    float* to = static_cast<float*>(row.y) + row.first + 8 * (q + lane % 2) + lane / 2 * 4;
    if (q + lane % 2 >= row.num_quads) continue;
    if constexpr (kAdd) {
      asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(half.x), "f"(half.y),
                   "f"(half.z), "f"(half.w)
                   : "memory");
    } else {
      *reinterpret_cast<float4*>(to) = half;
    }
  }
}

__device__ __forceinline__ uint32_t bf16_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Pairs of quads: eight gate channels and their up channels.
template <GateKind kKind, int kQuads>
__device__ __forceinline__ void store_gated(const BatchRowsParams& params, int32_t first, int32_t row,
                                            const float (&sums)[kQuads][4]) {
  Gate gate = params.gate;
  gate.kind = kKind;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t pairs[kQuads / 2];
#pragma unroll
    for (int q = 0; q < kQuads / 2; ++q) {
      const float(&g)[4] = sums[2 * q];
      const float(&u)[4] = sums[2 * q + 1];
      pairs[q] = bf16_pair(gated_rounded(gate, g[2 * half], u[2 * half]),
                           gated_rounded(gate, g[2 * half + 1], u[2 * half + 1]));
    }
    store_bf16(BatchRow(params, row + 8 * half, params.out_features / 2, first / 2), pairs);
  }
}

template <int kQuads>
__device__ __forceinline__ void store_some(const BatchRowsParams& params, int32_t first, int32_t row,
                                           const float (&sums)[kQuads][4]) {
  if (params.output == LinearOutput::kGated) {
    switch (params.gate.kind) {
      case GateKind::kSilu: return store_gated<GateKind::kSilu>(params, first, row, sums);
      case GateKind::kGeluTanh: return store_gated<GateKind::kGeluTanh>(params, first, row, sums);
      case GateKind::kClampedSwish: return store_gated<GateKind::kClampedSwish>(params, first, row, sums);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const BatchRow to(params, row + 8 * half, params.out_features, first);
    if (params.output == LinearOutput::kActivations) {
      uint32_t pairs[kQuads];
#pragma unroll
      for (int q = 0; q < kQuads; ++q) pairs[q] = bf16_pair(sums[q][2 * half], sums[q][2 * half + 1]);
      store_bf16(to, pairs);
    } else {
      float2 pairs[kQuads];
#pragma unroll
      for (int q = 0; q < kQuads; ++q) pairs[q] = make_float2(sums[q][2 * half], sums[q][2 * half + 1]);
      if (params.output == LinearOutput::kAddF32) {
        store_f32<true>(to, pairs);
      } else {
        store_f32<false>(to, pairs);
      }
    }
  }
}

/// Writes quads of the lane's rows `row` and `row` + 8, outputs from `first` on, counted as without gates.
template <int kQuads>
__device__ __forceinline__ void store_rows(const BatchRowsParams& params, int32_t first, int32_t row,
                                           const float (&sums)[kQuads][4]) {
  constexpr int kSome = 8;
#pragma unroll
  for (int q = 0; q + kSome <= kQuads; q += kSome)
    store_some(params, first + 8 * q, row, reinterpret_cast<const float(&)[kSome][4]>(sums[q]));
  if constexpr (kQuads % kSome != 0)
    store_some(params, first + kQuads / kSome * kSome * 8, row,
               reinterpret_cast<const float(&)[kQuads % kSome][4]>(sums[kQuads / kSome * kSome]));
}

/// The lane's first row in one of its warp's blocks.
template <class Traits>
__device__ __forceinline__ int32_t first_row(int32_t block) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  return (warp / 4 * Traits::kBlocks + block) * 64 + warp % 4 * 16 + lane / 4;
}

/// Writes the warp's part of a tile that begins with output `first`. Blocks of rows move to one place in turn: less
/// code.
template <class Traits>
__device__ __forceinline__ void store_tile(const BatchRowsParams& params, int32_t first, BatchSums<Traits>& sums) {
#pragma unroll 1
  for (int i = 0; i < Traits::kBlocks; ++i) {
    store_rows(params, first, first_row<Traits>(i), sums[0]);
    if constexpr (Traits::kBlocks > 1) {
      static_assert(Traits::kBlocks == 2);
#pragma unroll
      for (int q = 0; q < Traits::kQuads; ++q)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[0][q][e] = sums[1][q][e];
    }
  }
}

}  // namespace kvant::ops::cuda::detail
