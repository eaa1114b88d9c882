#pragma once

// How blocks of few_rows_kernel put together the sums of a tile that they share. Those of a cluster read each other's
// shared memory and each adds some, in the order of the blocks. Else those that enter a tile midway hand their sums
// through memory to the one that begins it, which adds them in order.

#include <cstdint>

#include "ops/cuda/few_rows_params.cuh"
#include "ops/cuda/few_rows_store.cuh"
#include "ops/cuda/hopper.cuh"

namespace kvant::ops::cuda::detail {

/// Adds and stores the sums that the cluster's blocks have of their tile. The ring's memory takes them.
template <class Traits>
__device__ __forceinline__ void store_in_cluster(const FewRowsBlock<Traits>& block, int32_t first, int32_t end,
                                                 const Sums<Traits>& sums) {
  constexpr int kWarps = Traits::kConsumers / 32;
  static_assert(Traits::kQuads * Traits::kConsumers * 16 <= kRingBytes, "what is free");
  hopper::meet<Traits::kConsumers>();  // No warp reads the ring any more.
#pragma unroll
  for (int q = 0; q < Traits::kQuads; ++q)
    hopper::put_quad(block.stages + static_cast<uint32_t>(q * Traits::kConsumers + threadIdx.x) * 16, sums[q]);
  hopper::arrive_at_cluster();
  hopper::wait_for_cluster();
  const auto warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t rank = hopper::cluster_rank();
  const int32_t num_sources = (end - first + 15) / 16;  // warps
  // A piece is what a warp of each block has of one quad.
  for (int32_t piece = warp * block.split + rank; piece < Traits::kQuads * num_sources; piece += kWarps * block.split) {
    const int32_t q = piece / num_sources, source = piece % num_sources;
    const uint32_t from = block.stages + (q * Traits::kConsumers + source * 32 + lane) * 16;
    float4 parts[kMostSplit];
#pragma unroll
    for (int i = 0; i < kMostSplit; ++i)
      if (i < block.split) parts[i] = hopper::take_quad(from, i);
    float total[4] = {};
#pragma unroll
    for (int i = 0; i < kMostSplit; ++i) {
      if (i >= block.split) continue;
      total[0] += parts[i].x;
      total[1] += parts[i].y;
      total[2] += parts[i].z;
      total[3] += parts[i].w;
    }
    store_quad(block.params, first + source * 16, end, q * 8, total);
  }
  // Shared memory stays until all have read it.
  hopper::arrive_at_cluster_relaxed();
  hopper::wait_for_cluster();
}

/// Marks a sum that has not come: a NaN that no arithmetic makes.
inline constexpr uint32_t kAbsent = 0xffffffffu;
inline constexpr uint32_t kOtherNan = 0x7fffffffu;

template <class Traits>
__device__ __forceinline__ float4* sums_of(const FewRowsBlock<Traits>& block, int32_t index) {
  return block.params.sums + int64_t{index} * Traits::kQuads * Traits::kConsumers + threadIdx.x;
}
__device__ __forceinline__ uint32_t present(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits == kAbsent ? kOtherNan : bits;
}
__device__ __forceinline__ bool has_come(const uint4& bits) {
  return bits.x != kAbsent && bits.y != kAbsent && bits.z != kAbsent && bits.w != kAbsent;
}

/// Every value says itself that it has come: no fence, no flag.
template <class Traits>
__device__ __forceinline__ void hand_over(const FewRowsBlock<Traits>& block, const Sums<Traits>& sums) {
  float4* to = sums_of(block, block.index);
  const uint64_t policy = hopper::read_often();
#pragma unroll
  for (int q = 0; q < Traits::kQuads; ++q)
    put_quad(to + q * Traits::kConsumers,
             {present(sums[q][0]), present(sums[q][1]), present(sums[q][2]), present(sums[q][3])}, policy);
}

/// Adds what `count` blocks from `index` on have, at most kGathered, in their order, and makes their places absent
/// again.
template <class Traits>
__device__ __forceinline__ void gather_some(const FewRowsBlock<Traits>& block, int32_t index, int32_t count,
                                            Sums<Traits>& sums) {
  const uint64_t policy = hopper::read_often();
  // The whole warp goes round, since the tensor cores want it together afterwards; and looks at one quad at first,
  // since many that read much slow those they wait for.
  while (__any_sync(0xffffffffu, !has_come(take_quad(sums_of(block, index + count - 1), policy)))) __nanosleep(20);
  uint4 parts[Traits::kGathered][Traits::kQuads] = {};
  bool missing = true;
  while (__any_sync(0xffffffffu, missing)) {
    missing = false;
#pragma unroll
    for (int i = 0; i < Traits::kGathered; ++i)
#pragma unroll
      for (int q = 0; q < Traits::kQuads; ++q)
        if (i < count) parts[i][q] = take_quad(sums_of(block, index + i) + q * Traits::kConsumers, policy);
#pragma unroll
    for (int i = 0; i < Traits::kGathered; ++i)
#pragma unroll
      for (int q = 0; q < Traits::kQuads; ++q) missing = missing || (i < count && !has_come(parts[i][q]));
  }
#pragma unroll
  for (int i = 0; i < Traits::kGathered; ++i) {
#pragma unroll
    for (int q = 0; q < Traits::kQuads; ++q) {
      if (i >= count) continue;
      put_quad(sums_of(block, index + i) + q * Traits::kConsumers, {kAbsent, kAbsent, kAbsent, kAbsent}, policy);
      sums[q][0] += __uint_as_float(parts[i][q].x);
      sums[q][1] += __uint_as_float(parts[i][q].y);
      sums[q][2] += __uint_as_float(parts[i][q].z);
      sums[q][3] += __uint_as_float(parts[i][q].w);
    }
  }
}

/// Adds what the blocks after this one have of the tile.
template <class Traits>
__device__ __forceinline__ void gather(const FewRowsBlock<Traits>& block, int32_t tile_end, Sums<Traits>& sums) {
  int32_t end = block.index + 1;
  while (share_of(end - 1, block.num_shares, block.params.num_units).end < tile_end) ++end;
  for (int32_t index = block.index + 1; index < end; index += Traits::kGathered)
    gather_some(block, index, min(Traits::kGathered, end - index), sums);
}

}  // namespace kvant::ops::cuda::detail
