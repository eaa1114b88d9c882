#pragma once

// How blocks of batch_rows_kernel that have slices of a tile's inputs put their sums together, through memory that
// stays in the second-level cache.

#include <cstdint>

#include "ops/cuda/batch_rows_params.cuh"
#include "ops/cuda/batch_rows_store.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/ring.cuh"

namespace kvant::ops::cuda::detail {

/// Where slice `slice` of a tile leaves the warp's sums.
template <class Traits>
__device__ __forceinline__ float4* sums_of(const BatchRowsParams& params, int32_t tile, int32_t slice) {
  const int64_t warp = (int64_t{tile} * params.split + slice) * Traits::kWarps + threadIdx.x / 32;
  return params.sums + warp * Traits::kBlocks * Traits::kQuads * 32 + threadIdx.x % 32;
}

template <class Traits>
__device__ __forceinline__ void leave_sums(float4* to, const BatchSums<Traits>& sums) {
  const uint64_t policy = hopper::read_often();
#pragma unroll
  for (int i = 0; i < Traits::kBlocks; ++i)
#pragma unroll
    for (int q = 0; q < Traits::kQuads; ++q)
      put_quad(to + (i * Traits::kQuads + q) * 32,
               {__float_as_uint(sums[i][q][0]), __float_as_uint(sums[i][q][1]), __float_as_uint(sums[i][q][2]),
                __float_as_uint(sums[i][q][3])},
               policy);
}

/// Adds what all slices have of some quads, in their order.
template <class Traits, int kQuads>
__device__ __forceinline__ void gather_quads(const float4* from, int32_t split, float (&sums)[kQuads][4]) {
  constexpr int64_t kStride = int64_t{Traits::kWarps} * Traits::kBlocks * Traits::kQuads * 32;
  const uint64_t policy = hopper::read_often();
  uint4 parts[kMostBatchSplit][kQuads] = {};
#pragma unroll
  for (int i = 0; i < kMostBatchSplit; ++i)
#pragma unroll
    for (int q = 0; q < kQuads; ++q)
      if (i < split) parts[i][q] = take_quad(from + i * kStride + q * 32, policy);
#pragma unroll
  for (int i = 0; i < kMostBatchSplit; ++i) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      sums[q][0] += __uint_as_float(parts[i][q].x);
      sums[q][1] += __uint_as_float(parts[i][q].y);
      sums[q][2] += __uint_as_float(parts[i][q].z);
      sums[q][3] += __uint_as_float(parts[i][q].w);
    }
  }
}

/// Leaves the warp's sums of a slice. The warp that is the last of its tile's slices to do so adds and writes all:
/// nobody waits, and the order of additions does not tell who was last.
template <class Traits>
__device__ __forceinline__ void join_slices(const BatchRowsParams& params, int32_t tile, int32_t slice,
                                            const BatchSums<Traits>& sums) {
  leave_sums<Traits>(sums_of<Traits>(params, tile, slice), sums);
  __syncwarp();
  uint32_t* count = params.counts + tile * Traits::kWarps + threadIdx.x / 32;
  const bool leader = threadIdx.x % 32 == 0;
  uint32_t before = 0;
  if (leader) asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  if (__shfl_sync(0xffffffffu, before, 0) + 1 != static_cast<uint32_t>(params.split)) return;
  if (leader) *count = 0;
  __syncwarp();
  constexpr int kAtOnce = 4;
  static_assert(Traits::kQuads % kAtOnce == 0);
  const float4* from = sums_of<Traits>(params, tile, 0);
#pragma unroll 1
  for (int i = 0; i < Traits::kBlocks; ++i) {
#pragma unroll 1
    for (int q = 0; q < Traits::kQuads; q += kAtOnce) {
      float total[kAtOnce][4] = {};
      gather_quads<Traits>(from + (i * Traits::kQuads + q) * 32, params.split, total);
      store_rows(params, tile * Traits::kOutputs + 8 * q, first_row<Traits>(i), total);
    }
  }
}

}  // namespace kvant::ops::cuda::detail
