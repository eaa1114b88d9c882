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
    const auto grid = static_cast<int32_t>(gridDim.x);
    const auto [begin, end, share] = this->share_of_block();
    const bool whole = share == 0;
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
      this->finish(segment, position, begin, share);
      position = this->shared_.next;
      __syncthreads();
    }
    if (whole && Traits::thread() == 0) this->leave();
  }

 private:
  using Base::p_;
};

}  // namespace kvant::attn::cuda
