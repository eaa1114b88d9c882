#pragma once

// few_rows_kernel: y = x W^T for few rows, whose time is that of reading the weight. A ring of stages in shared memory
// is filled with boxes of the weight by the copy engine and with x by a group of threads; warpgroups multiply, outputs
// as the rows of their product (D = W x^T). Blocks take equal shares of the sequence (tile of outputs, chunk of
// inputs), or those of a cluster the inputs of one tile; few_rows_sums.cuh puts their sums together. The ring is full
// of weights before the kernel before this one has ended.

#include <cstdint>

#include "ops/cuda/few_rows_params.cuh"
#include "ops/cuda/few_rows_store.cuh"
#include "ops/cuda/few_rows_sums.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {
namespace detail {

/// Where a unit is in the weight, without a division for each of them.
struct UnitPlace {
  int32_t num_chunks, tile_outputs;
  int32_t chunk, first;  // output

  __device__ __forceinline__ void advance() {
    if (++chunk < num_chunks) return;
    chunk = 0;
    first += tile_outputs;
  }
};

template <class Traits>
__device__ __forceinline__ UnitPlace first_unit(const FewRowsBlock<Traits>& block) {
  const FewRowsParams& params = block.params;
  return {params.num_chunks, block.tile_outputs(), block.share.begin % params.num_chunks,
          block.first_output(block.share.begin)};
}

template <class Traits>
__device__ __forceinline__ void copy_weight(const FewRowsBlock<Traits>& block, const UnitPlace& unit, int32_t stage,
                                            uint64_t policy) {
  hopper::arrive_expecting(block.full(stage), block.weight_bytes());
  const FewRowsParams& params = block.params;
  const uint32_t to = block.weight_at(stage);
  const int32_t column = unit.chunk * kChunk;
  if (params.output == LinearOutput::kGated) {
    hopper::copy_groups(to, &params.weight, column, unit.first / 16, block.full(stage), policy);
  } else {
    hopper::copy_box(to, &params.weight, column, unit.first, block.full(stage), policy);
  }
}

/// Before anything else. Returns the first unit that the ring has no room for.
template <class Traits>
__device__ __forceinline__ UnitPlace start_weights(const FewRowsBlock<Traits>& block) {
  for (int stage = 0; stage < block.num_stages(); ++stage) {
    hopper::init_barrier(block.full(stage), 1 + Traits::kCopiers);
    hopper::init_barrier(block.empty(stage), Traits::kConsumers / 32);
  }
  hopper::fence_barrier_init();
  const uint64_t policy = hopper::read_once();
  const int32_t count = min(block.share.end - block.share.begin, block.num_stages());
  UnitPlace unit = first_unit(block);
  for (int32_t i = 0; i < count; ++i) {
    copy_weight(block, unit, i, policy);
    unit.advance();
  }
  return unit;
}

/// The rest, from `unit` on.
template <class Traits>
__device__ __forceinline__ void copy_weights(const FewRowsBlock<Traits>& block, UnitPlace unit) {
  const uint64_t policy = hopper::read_once();
  RingPlace place{block.num_stages(), 0, 0};
  for (int32_t i = block.share.begin + block.num_stages(); i < block.share.end; ++i) {
    hopper::wait_barrier(block.empty(place.stage), place.parity);
    copy_weight(block, unit, place.stage, policy);
    unit.advance();
    place.advance();
  }
  wait_for_previous_kernel();
  allow_next_kernel();
}

/// Not the copy engine's work: there it would queue behind the weights.
template <class Traits>
__device__ __forceinline__ void copy_x(const FewRowsBlock<Traits>& block) {
  wait_for_previous_kernel();
  const FewRowsParams& params = block.params;
  const uint64_t policy = hopper::read_often();
  const auto thread = static_cast<int32_t>(threadIdx.x) - Traits::kConsumers;
  const int32_t piece = thread % 8;  // of a row of 128 bytes
  RingPlace place{block.num_stages(), 0, 1};
  UnitPlace unit = first_unit(block);
  for (int32_t i = block.share.begin; i < block.share.end; ++i) {
    hopper::wait_barrier(block.empty(place.stage), place.parity);
    const int32_t column = unit.chunk * kChunk + piece * 8;
#pragma unroll
    for (int first = 0; first < Traits::kRows; first += Traits::kCopiers / 8) {
      // Rows past the last keep what was there: their sums are not written. Inputs past the last meet zeros of the
      // weight, and must be numbers.
      const int32_t row = first + thread / 8;
      if (row < params.num_rows)
        hopper::copy_piece(block.x_at(place.stage) + row * 128 + (piece ^ (row & 7)) * 16,
                           params.x + int64_t{row} * params.in_features + column, column < params.in_features, policy);
    }
    hopper::arrive_when_copied(block.full(place.stage));
    unit.advance();
    place.advance();
  }
}

template <class Traits>
__device__ __forceinline__ void multiply_units(const FewRowsBlock<Traits>& block, int32_t count, RingPlace& place,
                                               Sums<Traits>& sums) {
  const auto group = static_cast<int32_t>(threadIdx.x / 128);
  int32_t last = -1;
  for (int32_t i = 0; i < count; ++i) {
    hopper::wait_barrier(block.full(place.stage), place.parity);
    hopper::fence_pieces();
    const uint64_t weight = hopper::rows_descriptor(block.weight_at(place.stage) + group * Traits::kGroupBytes);
    const uint64_t x = hopper::rows_descriptor(block.x_at(place.stage));
    hopper::start_mma();
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) hopper::mma(sums, weight + 2 * k, x + 2 * k, i > 0 || k > 0);
    hopper::commit_mma();
    // The stage before this one is done with when its batch is.
    hopper::wait_mma<1>();
    if (last >= 0) release(block, last);
    last = place.stage;
    place.advance();
  }
  hopper::wait_mma<0>();
  release(block, last);
  // The compiler does not know that sums are written until here.
#pragma unroll
  for (int q = 0; q < Traits::kQuads; ++q)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[q][e])::"memory");
}

template <class Traits>
__device__ __forceinline__ void consume(const FewRowsBlock<Traits>& block) {
  wait_for_previous_kernel();
  const int32_t num_chunks = block.params.num_chunks;
  RingPlace place{block.num_stages(), 0, 0};
  for (int32_t unit = block.share.begin; unit < block.share.end;) {
    const int32_t chunk = unit % num_chunks, tile_end = unit - chunk + num_chunks;
    const int32_t count = min(block.share.end, tile_end) - unit, first = block.first_output(unit);
    const int32_t end = min(first + block.tile_outputs(), block.params.out_features);
    Sums<Traits> sums;
    multiply_units(block, count, place, sums);
    unit += count;
    if constexpr (Traits::kWholeTiles) {
      if (block.split > 1) return store_in_cluster(block, first, end, sums);
    } else {
      if (chunk > 0) {
        hand_over(block, sums);
        continue;
      }
      if (count < num_chunks) gather(block, tile_end, sums);
    }
    store_sums<Traits>(block.params, first + static_cast<int32_t>(threadIdx.x / 32) * 16, end, sums);
  }
}

template <class Traits>
__device__ __forceinline__ Share choose_share(const FewRowsParams& params, int32_t index, int32_t num_shares,
                                              int32_t split) {
  if constexpr (!Traits::kWholeTiles) return share_of(index, num_shares, params.num_units);
  if (split == 1) return share_of(index, num_shares, params.num_units / params.num_chunks, params.num_chunks);
  const int32_t tile = static_cast<int32_t>(blockIdx.x) / split * params.num_chunks;
  const Share slice = share_of(hopper::cluster_rank(), split, params.num_chunks);
  return {tile + slice.begin, tile + slice.end};
}

}  // namespace detail

template <class Traits>
__global__ void __launch_bounds__(Traits::kBoundThreads, 1)
    few_rows_kernel(const __grid_constant__ FewRowsParams params) {
  extern __shared__ uint8_t shared[];
  const uint32_t stages = (hopper::shared_address(shared) + 1023) / 1024 * 1024;
  const auto num_shares = static_cast<int32_t>(gridDim.x);
  // Blocks wait for those of later shares. Blocks start in order, so these come first.
  const int32_t index = num_shares - 1 - static_cast<int32_t>(blockIdx.x);
  const int32_t split = Traits::kWholeTiles ? hopper::cluster_size() : 1;
  const detail::FewRowsBlock<Traits> block{params,
                                           stages,
                                           stages + kRingBytes,
                                           index,
                                           num_shares,
                                           split,
                                           detail::choose_share<Traits>(params, index, num_shares, split)};
  constexpr int kWeightCopier = Traits::kConsumers + Traits::kCopiers;
  detail::UnitPlace unit{};
  if (threadIdx.x == kWeightCopier) unit = detail::start_weights(block);
  __syncthreads();
  if (threadIdx.x < Traits::kConsumers) {
    detail::consume(block);
  } else if (threadIdx.x < kWeightCopier) {
    detail::copy_x(block);
  } else if (threadIdx.x == kWeightCopier) {
    detail::copy_weights(block, unit);
  }
}

}  // namespace kvant::ops::cuda
