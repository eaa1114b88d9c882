#pragma once

// What warpgroup products share: chunks of inputs in a ring of stages in shared memory, and sums that blocks leave each
// other.

#include <cstdint>

#include "ops/cuda/hopper.cuh"

namespace kvant::ops::cuda {

inline constexpr int kChunk = 64;  // inputs of a stage

namespace detail {

/// Where a thread is in the ring.
struct RingPlace {
  int32_t num_stages;
  int32_t stage;
  uint32_t parity;

  __device__ __forceinline__ void advance() {
    if (++stage < num_stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/// A warp has read the stage.
template <class Block>
__device__ __forceinline__ void release(const Block& block, int32_t stage) {
  if (threadIdx.x % 32 == 0) hopper::arrive(block.empty(stage));
}

/// Part [begin, end) of something.
struct Share {
  int32_t begin, end;
};
__device__ __forceinline__ Share share_of(int32_t index, int32_t num_shares, int32_t count) {
  return {count * index / num_shares, count * (index + 1) / num_shares};
}

/// Memory that another block reads and writes.
__device__ __forceinline__ void put_quad(float4* to, const uint4& bits, uint64_t policy) {
  asm volatile("st.relaxed.gpu.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(bits.x),
               "r"(bits.y), "r"(bits.z), "r"(bits.w), "l"(policy)
               : "memory");
}
__device__ __forceinline__ uint4 take_quad(const float4* from, uint64_t policy) {
  uint4 bits;
  asm volatile("ld.relaxed.gpu.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from), "l"(policy)
               : "memory");
  return bits;
}

}  // namespace detail
}  // namespace kvant::ops::cuda
