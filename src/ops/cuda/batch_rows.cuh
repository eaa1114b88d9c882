#pragma once

// batch_rows_kernel: y = x W^T for 65 to 256 rows, all of them in every tile, so that the weight is read once. A ring
// of stages in shared memory is filled with boxes of the weight and of x by the copy engine; warpgroups multiply, each
// its rows of x (D = x W^T). A block has a tile of outputs, or a slice of its inputs; batch_rows_sums.cuh puts slices
// together. The ring is full of weights before the kernel before this one has ended.

#include <cstdint>

#include "core/warpgroup_registers.cuh"
#include "ops/cuda/batch_rows_params.cuh"
#include "ops/cuda/batch_rows_store.cuh"
#include "ops/cuda/batch_rows_sums.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {
namespace detail {

/// The stage's barrier counts on x as well. Rows past the last keep what was there: their sums are not written. Boxes
/// that reached beyond x would be up to a fifth slower.
template <class Traits>
__device__ __forceinline__ void copy_weight(const BatchRowsBlock<Traits>& block, int32_t chunk, int32_t stage,
                                            uint64_t policy) {
  const BatchRowsParams& params = block.params;
  const int32_t column = chunk * kChunk, first = block.tile * Traits::kOutputs;
  hopper::arrive_expecting(block.full(stage), Traits::kWeightBytes + params.num_rows * kChunk * 2);
  if (params.output == LinearOutput::kGated) {
    hopper::copy_groups(block.weight_at(stage), &params.weight, column, first / 16, block.full(stage), policy);
  } else {
    hopper::copy_box(block.weight_at(stage), &params.weight, column, first, block.full(stage), policy);
  }
}

/// By one thread, before anything else. Returns how many chunks it has asked for.
template <class Traits>
__device__ __forceinline__ int32_t start_weights(const BatchRowsBlock<Traits>& block) {
  for (int stage = 0; stage < Traits::kStages; ++stage) {
    hopper::init_barrier(block.full(stage), 1);
    hopper::init_barrier(block.empty(stage), Traits::kWarps);
  }
  hopper::fence_barrier_init();
  const uint64_t policy = hopper::read_once();
  const int32_t count = min(block.chunks.end - block.chunks.begin, Traits::kStages);
  for (int32_t i = 0; i < count; ++i) copy_weight(block, block.chunks.begin + i, i, policy);
  return count;
}

/// The rest and x, by the same thread.
template <class Traits>
__device__ __forceinline__ void fill_ring(const BatchRowsBlock<Traits>& block, int32_t num_asked) {
  wait_for_previous_kernel();
  const uint64_t once = hopper::read_once(), often = hopper::read_often();
  RingPlace place{Traits::kStages, 0, 1};
  for (int32_t chunk = block.chunks.begin; chunk < block.chunks.end; ++chunk) {
    if (chunk >= block.chunks.begin + num_asked) {
      hopper::wait_barrier(block.empty(place.stage), place.parity);
      copy_weight(block, chunk, place.stage, once);
    }
    hopper::copy_box(block.x_at(place.stage), &block.params.x, chunk * kChunk, 0, block.full(place.stage), often);
    place.advance();
  }
  allow_next_kernel();
}

/// The compiler does not know when the tensor cores read and write sums: it moves nothing of them across this.
template <class Traits>
__device__ __forceinline__ void fix_sums(BatchSums<Traits>& sums) {
#pragma unroll
  for (int b = 0; b < Traits::kBlocks; ++b)
#pragma unroll
    for (int q = 0; q < Traits::kQuads; ++q)
#pragma unroll
      for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[b][q][e])::"memory");
}

template <class Traits>
__device__ __forceinline__ void multiply_chunks(const BatchRowsBlock<Traits>& block, BatchSums<Traits>& sums) {
  constexpr int kRowBlockBytes = 64 * kChunk * 2;
  const uint32_t rows = threadIdx.x / 128 * Traits::kBlocks * kRowBlockBytes;
  RingPlace place{Traits::kStages, 0, 0};
  int32_t last = -1;
  fix_sums<Traits>(sums);
#pragma unroll 1
  for (int32_t count = block.chunks.end - block.chunks.begin; count > 0; --count) {
    hopper::wait_barrier(block.full(place.stage), place.parity);
    const uint64_t x = hopper::rows_descriptor(block.x_at(place.stage) + rows);
    const uint64_t weight = hopper::rows_descriptor(block.weight_at(place.stage));
    hopper::start_mma();
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k)
#pragma unroll
      for (int b = 0; b < Traits::kBlocks; ++b)
        hopper::mma(sums[b], x + b * (kRowBlockBytes >> 4) + 2 * k, weight + 2 * k, true);
    hopper::commit_mma();
    // The stage before this one is done with when its batch is.
    hopper::wait_mma<1>();
    if (last >= 0) release(block, last);
    last = place.stage;
    place.advance();
  }
  hopper::wait_mma<0>();
  fix_sums<Traits>(sums);
}

template <class Traits>
__device__ __forceinline__ void consume(const BatchRowsBlock<Traits>& block) {
  wait_for_previous_kernel();
  // All products add: sums that the first one overwrote would be live before it.
  BatchSums<Traits> sums = {};
  multiply_chunks(block, sums);
  if constexpr (Traits::kSliced) {
    if (block.params.split > 1) return join_slices<Traits>(block.params, block.tile, block.slice, sums);
  }
  store_tile<Traits>(block.params, block.tile * Traits::kOutputs, sums);
}

}  // namespace detail

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    batch_rows_kernel(const __grid_constant__ BatchRowsParams params) {
  extern __shared__ uint8_t shared[];
  const auto index = static_cast<int32_t>(blockIdx.x);
  const int32_t slice = index % params.split;
  const detail::BatchRowsBlock<Traits> block{params, (hopper::shared_address(shared) + 1023) / 1024 * 1024,
                                             index / params.split, slice,
                                             detail::share_of(slice, params.split, params.num_chunks)};
  int32_t num_asked = 0;
  if (threadIdx.x == Traits::kConsumers) num_asked = detail::start_weights(block);
  __syncthreads();
  if (threadIdx.x < Traits::kConsumers) {
    take_registers<Traits::kConsumerRegisters>();
    detail::consume(block);
  } else {
    give_registers<Traits::kProducerRegisters>();
    if (threadIdx.x == Traits::kConsumers) detail::fill_ring(block, num_asked);
  }
}

}  // namespace kvant::ops::cuda
