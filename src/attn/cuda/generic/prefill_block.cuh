#pragma once

// What a prefill kernel's block does from start to end, for any way of doing the products.

#include <cstdint>

#include "attn/cuda/generic/prefill_finish.cuh"

namespace kvant::attn::cuda {

/// One block's work, one item or part of one after another.
template <class Traits>
class PrefillBlock : private PrefillFinish<Traits> {
 public:
  using Base = PrefillFinish<Traits>;
  using Base::Base;

  __device__ void run() {
    const auto grid = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
    int32_t total = scan_prefill_requests<Traits>(p_, this->shared_, true);
    const bool whole = p_.batch_invariant || total >= Base::kItemsPerBlock * grid;
    if (!whole) total = scan_prefill_requests<Traits>(p_, this->shared_, false);
    const int32_t share = whole ? 1 : max((total + grid - 1) / grid, Base::kMinShare);
    const int32_t begin = min(block * share, total);
    const int32_t end = whole ? total : min(begin + share, total);
    if (begin < end && this->warp_ == 0)
      find_prefill_segment<Traits>(p_, this->shared_, this->shared_.segments[0], begin, end, whole);
    __syncthreads();
    int32_t position = begin;
    for (int current = 0; position < end; current ^= 1) {
      const PrefillSegment& segment = this->shared_.segments[current];
      const int32_t tiles = segment.tile_end - segment.tile_begin;
      // One warp looks for the next item while this one's first copies are on their way.
      const auto find_next = [&] {
        if (this->warp_ != Traits::kWarps - 1) return;
        int32_t next = position + tiles;
        if (whole) {
          if (this->lane_ == 0) next = grid + static_cast<int32_t>(atomicAdd(p_.counters + grid, 1u));
          next = __shfl_sync(0xffffffffu, next, 0);
        }
        if (next < end)
          find_prefill_segment<Traits>(p_, this->shared_, this->shared_.segments[current ^ 1], next, end, whole);
        if (this->lane_ == 0) this->shared_.next = next;
      };
      this->attend(segment, find_next);
      this->finish(segment, position, begin, whole ? 0 : share);
      position = this->shared_.next;
      __syncthreads();
    }
    if (whole) leave(grid);
  }

 private:
  using Base::p_;

  /// The last block to run out of work leaves the counters as it found them.
  __device__ void leave(int32_t grid) const {
    if (Traits::thread() != 0) return;
    uint32_t* counters = p_.counters + grid;
    if (atomicAdd(counters + 1, 1u) + 1 != static_cast<uint32_t>(grid)) return;
    counters[0] = 0;
    counters[1] = 0;
  }
};

}  // namespace kvant::attn::cuda
