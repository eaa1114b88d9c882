#pragma once

// What a launch of few_rows_kernel and its blocks know.

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>

#include "ops/activation.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/ring.cuh"
#include "ops/linear.h"

namespace kvant::ops::cuda {

inline constexpr int kMostSplit = 8;  // blocks of a cluster
inline constexpr int kRingBytes = 218 * 1024;
inline constexpr int kMostStages = 24;

/// A tile's outputs and rows of x.
constexpr int stages_of(int outputs, int rows) {
  const int stages = kRingBytes / ((outputs + rows) * kChunk * 2);
  return stages < kMostStages ? stages : kMostStages;
}

/// kTileRows: rows of x that a tile holds; kWarpgroups: each multiplies 64 outputs. Of the last one's, those past the
/// tile's are made of what is there, and not written.
template <int kTileRows, int kWarpgroups>
struct FewRowsTraits {
  static constexpr int kRows = kTileRows;
  static constexpr int kMostOutputs = 64 * kWarpgroups;  // of a tile
  static constexpr int kGroupBytes = 64 * kChunk * 2;    // of the weight for a warpgroup
  static constexpr int kBarrierBytes = 2 * 8 * kMostStages;
  static constexpr int kSharedBytes = 1024 + kRingBytes + kBarrierBytes;  // stages are aligned by 1024
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kCopiers = kRows < kMostManyRows ? 64 : 128;  // of x
  static constexpr int kThreads = kConsumers + kCopiers + 32;
  /// With 1024 a thread has at most 64 registers, which leaves some for blocks of the norm after a product.
  static constexpr int kBoundThreads = kRows > kMostFewRows ? 1024 : kThreads;
  static constexpr int kQuads = kRows / 8;  // of sums that a thread holds
  static constexpr int kGathered = 3;       // blocks whose sums a thread asks for at once
  /// Then blocks take whole tiles or a cluster's share of one: sums of many rows are slow to pass through memory. Else
  /// tiles are as large as they can be, and equal shares of them begin and end anywhere.
  static constexpr bool kWholeTiles = kRows > kMostFewRows;
  static constexpr int kShareStages = stages_of(kMostOutputs, kRows);
  static_assert(kSharedBytes <= 227 * 1024, "what a block can have");
};

struct FewRowsParams {
  CUtensorMap weight;      // [out_features, in_features], boxes of tile_outputs x kChunk; where gated, eight gate
                           // channels beside their eight up channels
  const __nv_bfloat16* x;  // [num_rows, in_features]
  void* y;                 // [num_rows, out_features], half as wide where gated
  float4* sums;            // [blocks, kQuads, kConsumers], all kAbsent between runs
  int32_t out_features;    // multiple of 8
  int32_t in_features;     // multiple of 8
  int32_t num_rows;
  int32_t tile_outputs;  // multiple of 8, where gated of 16
  int32_t num_stages;
  int32_t num_chunks;  // of in_features
  int32_t num_units;   // tiles x chunks; num_units x (blocks + 1) is an int32
  LinearOutput output;
  Gate gate;
};

namespace detail {

/// Units of a block, of parts of `size`.
__device__ __forceinline__ Share share_of(int32_t index, int32_t num_shares, int32_t count, int32_t size) {
  const Share share = share_of(index, num_shares, count);
  return {share.begin * size, share.end * size};
}

template <class Traits>
struct FewRowsBlock {
  const FewRowsParams& params;
  uint32_t stages;    // shared address
  uint32_t barriers;  // full [kMostStages], empty [kMostStages]
  int32_t index, num_shares;
  int32_t split;  // blocks of a cluster that share a tile's inputs
  Share share;

  __device__ __forceinline__ uint32_t full(int32_t stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int32_t stage) const { return barriers + 8 * (kMostStages + stage); }
  __device__ __forceinline__ int32_t tile_outputs() const {
    return Traits::kWholeTiles ? params.tile_outputs : Traits::kMostOutputs;
  }
  __device__ __forceinline__ int32_t num_stages() const {
    return Traits::kWholeTiles ? params.num_stages : Traits::kShareStages;
  }
  __device__ __forceinline__ uint32_t weight_bytes() const { return tile_outputs() * kChunk * 2; }
  __device__ __forceinline__ uint32_t weight_at(int32_t stage) const {
    return stages + stage * (weight_bytes() + Traits::kRows * kChunk * 2);
  }
  __device__ __forceinline__ uint32_t x_at(int32_t stage) const { return weight_at(stage) + weight_bytes(); }
  __device__ __forceinline__ int32_t first_output(int32_t unit) const {
    return unit / params.num_chunks * tile_outputs();
  }
};

template <class Traits>
using Sums = float[Traits::kQuads][4];

}  // namespace detail
}  // namespace kvant::ops::cuda
