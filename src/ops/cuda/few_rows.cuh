#pragma once

// few_rows_kernel: y = x W^T for few rows, whose time is that of reading the weight. A ring of stages in shared memory
// is filled with boxes of the weight by the copy engine and with x by a group of threads; warpgroups multiply, outputs
// as the rows of their product (D = W x^T). Blocks take equal shares of the sequence (tile of outputs, chunk of
// inputs). Those that enter a tile midway hand their sums to the one that begins it, which adds them in order. The ring
// is full of weights before the kernel before this one has ended.

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/linear.h"

namespace kvant::ops::cuda {

/// kTileRows: rows of x that a tile holds; kWarpgroups: each multiplies 64 outputs.
template <int kTileRows, int kWarpgroups>
struct FewRowsTraits {
  static constexpr int kRows = kTileRows;
  static constexpr int kOutputs = 64 * kWarpgroups;  // of a tile
  static constexpr int kChunk = 64;                  // inputs
  static constexpr int kBoxOutputs = 64;             // of what is copied at a time
  static constexpr int kBoxBytes = kBoxOutputs * kChunk * 2;
  static constexpr int kWeightBytes = kOutputs * kChunk * 2;
  static constexpr int kStageBytes = kWeightBytes + kRows * kChunk * 2;
  static constexpr int kStages = 218 * 1024 / kStageBytes;
  static constexpr int kBarrierBytes = 2 * 8 * kStages;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kBarrierBytes;  // stages are aligned by 1024
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kCopiers = 64;  // of x
  static constexpr int kThreads = kConsumers + kCopiers + 32;
  static constexpr int kQuads = kRows / 8;  // of sums that a thread holds
  static constexpr int kGathered = 3;       // blocks whose sums a thread asks for at once
  static_assert(kSharedBytes <= 227 * 1024, "what a block can have");
};

struct FewRowsParams {
  CUtensorMap weight;      // [out_features, in_features], boxes of kBoxOutputs x kChunk
  const __nv_bfloat16* x;  // [num_rows, in_features]
  void* y;                 // [num_rows, out_features]
  float4* sums;            // [blocks, kQuads, kConsumers], all kAbsent between runs
  int32_t out_features;    // multiple of 8
  int32_t in_features;     // multiple of 8
  int32_t num_rows;
  int32_t num_chunks;  // of in_features
  int32_t num_units;   // tiles x chunks; num_units x (blocks + 1) is an int32
  LinearOutput output;
};

namespace detail {

/// Units [begin, end) of a block.
struct Share {
  int32_t begin, end;
};
__device__ __forceinline__ Share share_of(int32_t index, int32_t num_shares, int32_t num_units) {
  return {num_units * index / num_shares, num_units * (index + 1) / num_shares};
}

template <class Traits>
struct FewRowsBlock {
  const FewRowsParams& params;
  uint32_t stages;    // shared address
  uint32_t barriers;  // full [kStages], empty [kStages]
  int32_t index, num_shares;
  Share share;

  __device__ __forceinline__ uint32_t full(int32_t stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int32_t stage) const { return barriers + 8 * (Traits::kStages + stage); }
  __device__ __forceinline__ uint32_t weight_at(int32_t stage) const { return stages + stage * Traits::kStageBytes; }
  __device__ __forceinline__ uint32_t x_at(int32_t stage) const { return weight_at(stage) + Traits::kWeightBytes; }
  __device__ __forceinline__ int32_t column(int32_t unit) const { return unit % params.num_chunks * Traits::kChunk; }
  __device__ __forceinline__ int32_t first_output(int32_t unit) const {
    return unit / params.num_chunks * Traits::kOutputs;
  }
};

/// Where a thread is in the ring.
template <int kStages>
struct RingPlace {
  int32_t stage;
  uint32_t parity;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <class Traits>
__device__ __forceinline__ void copy_weight(const FewRowsBlock<Traits>& block, int32_t unit, int32_t stage,
                                            uint64_t policy) {
  hopper::arrive_expecting(block.full(stage), Traits::kWeightBytes);
#pragma unroll
  for (int box = 0; box < Traits::kOutputs / Traits::kBoxOutputs; ++box)
    hopper::copy_box(block.weight_at(stage) + box * Traits::kBoxBytes, &block.params.weight, block.column(unit),
                     block.first_output(unit) + box * Traits::kBoxOutputs, block.full(stage), policy);
}

/// Before anything else.
template <class Traits>
__device__ __forceinline__ void start_weights(const FewRowsBlock<Traits>& block) {
  for (int stage = 0; stage < Traits::kStages; ++stage) {
    hopper::init_barrier(block.full(stage), 1 + Traits::kCopiers);
    hopper::init_barrier(block.empty(stage), Traits::kConsumers / 32);
  }
  hopper::fence_barrier_init();
  const uint64_t policy = hopper::read_once();
  const int32_t count = min(block.share.end - block.share.begin, Traits::kStages);
  for (int32_t i = 0; i < count; ++i) copy_weight(block, block.share.begin + i, i, policy);
}

/// What the ring had no room for.
template <class Traits>
__device__ __forceinline__ void copy_weights(const FewRowsBlock<Traits>& block) {
  const uint64_t policy = hopper::read_once();
  RingPlace<Traits::kStages> place{0, 0};
  for (int32_t unit = block.share.begin + Traits::kStages; unit < block.share.end; ++unit) {
    hopper::wait_barrier(block.empty(place.stage), place.parity);
    copy_weight(block, unit, place.stage, policy);
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
  RingPlace<Traits::kStages> place{0, 1};
  for (int32_t unit = block.share.begin; unit < block.share.end; ++unit) {
    hopper::wait_barrier(block.empty(place.stage), place.parity);
    const int32_t column = block.column(unit) + piece * 8;
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
    place.advance();
  }
}

template <class Traits>
using Sums = float[Traits::kQuads][4];

template <class Traits>
__device__ __forceinline__ void release(const FewRowsBlock<Traits>& block, int32_t stage) {
  if (threadIdx.x % 32 == 0) hopper::arrive(block.empty(stage));
}

template <class Traits>
__device__ __forceinline__ void multiply_units(const FewRowsBlock<Traits>& block, int32_t count,
                                               RingPlace<Traits::kStages>& place, Sums<Traits>& sums) {
  const auto group = static_cast<int32_t>(threadIdx.x / 128);
  int32_t last = -1;
  for (int32_t i = 0; i < count; ++i) {
    hopper::wait_barrier(block.full(place.stage), place.parity);
    hopper::fence_pieces();
    const uint64_t weight = hopper::rows_descriptor(block.weight_at(place.stage) + group * Traits::kBoxBytes);
    const uint64_t x = hopper::rows_descriptor(block.x_at(place.stage));
    hopper::start_mma();
#pragma unroll
    for (int k = 0; k < Traits::kChunk / 16; ++k) hopper::mma(sums, weight + 2 * k, x + 2 * k, i > 0 || k > 0);
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

/// Eight outputs of two rows a lane to two outputs of eight rows a lane, as bf16.
__device__ __forceinline__ uint32_t transposed(float even, float odd) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(even, odd);
  uint32_t bits = *reinterpret_cast<const uint32_t*>(&pair);
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(bits));
  return bits;
}

/// Sums of outputs first + 0..15 and rows row + 0..7.
__device__ __forceinline__ void store_quad(const FewRowsParams& params, int32_t first, int32_t row,
                                           const float (&sums)[4]) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  if (params.output == LinearOutput::kActivations) {
    const uint32_t low = transposed(sums[0], sums[1]), high = transposed(sums[2], sums[3]);
    const int32_t output = first + lane % 4 * 2;
    if (row + lane / 4 >= params.num_rows) return;
    auto* y = static_cast<__nv_bfloat16*>(params.y) + int64_t{row + lane / 4} * params.out_features + output;
    if (output < params.out_features) *reinterpret_cast<uint32_t*>(y) = low;
    if (output + 8 < params.out_features) *reinterpret_cast<uint32_t*>(y + 8) = high;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t token = row + lane % 4 * 2 + i % 2, output = first + lane / 4 + i / 2 * 8;
    if (token >= params.num_rows || output >= params.out_features) continue;
    float* y = static_cast<float*>(params.y) + int64_t{token} * params.out_features + output;
    // One addition each, and nothing to wait for.
    if (params.output == LinearOutput::kAddF32) {
      asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(y), "f"(sums[i]) : "memory");
    } else {
      *y = sums[i];
    }
  }
}

template <class Traits>
__device__ __forceinline__ void consume(const FewRowsBlock<Traits>& block) {
  wait_for_previous_kernel();
  const int32_t num_chunks = block.params.num_chunks;
  RingPlace<Traits::kStages> place{0, 0};
  for (int32_t unit = block.share.begin; unit < block.share.end;) {
    const int32_t chunk = unit % num_chunks, tile_end = unit - chunk + num_chunks;
    const int32_t count = min(block.share.end, tile_end) - unit;
    Sums<Traits> sums;
    multiply_units(block, count, place, sums);
    if (chunk > 0) {
      hand_over(block, sums);
    } else {
      if (count < num_chunks) gather(block, tile_end, sums);
      const int32_t first = block.first_output(unit) + static_cast<int32_t>(threadIdx.x / 32) * 16;
#pragma unroll
      for (int q = 0; q < Traits::kQuads; ++q) store_quad(block.params, first, q * 8, sums[q]);
    }
    unit += count;
  }
}

}  // namespace detail

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) few_rows_kernel(const __grid_constant__ FewRowsParams params) {
  extern __shared__ uint8_t shared[];
  const uint32_t stages = (hopper::shared_address(shared) + 1023) / 1024 * 1024;
  const auto num_shares = static_cast<int32_t>(gridDim.x);
  // Blocks wait for those of later shares. Blocks start in order, so these come first.
  const int32_t index = num_shares - 1 - static_cast<int32_t>(blockIdx.x);
  const detail::FewRowsBlock<Traits> block{params, stages,     stages + Traits::kStages * Traits::kStageBytes,
                                           index,  num_shares, detail::share_of(index, num_shares, params.num_units)};
  constexpr int kWeightCopier = Traits::kConsumers + Traits::kCopiers;
  if (threadIdx.x == kWeightCopier) detail::start_weights(block);
  __syncthreads();
  if (threadIdx.x < Traits::kConsumers) {
    detail::consume(block);
  } else if (threadIdx.x < kWeightCopier) {
    detail::copy_x(block);
  } else if (threadIdx.x == kWeightCopier) {
    detail::copy_weights(block);
  }
}

}  // namespace kvant::ops::cuda
