#pragma once

// What a launch of batch_rows_kernel and its blocks know.

#include <cstdint>

#include <cuda.h>

#include "ops/activation.h"
#include "ops/cuda/ring.cuh"
#include "ops/linear.h"

namespace kvant::ops::cuda {

inline constexpr int kMostBatchSplit = 4;
/// Of tiles whose inputs are cut into slices.
inline constexpr int kMostSlicedOutputs = 128;

/// kWarpgroups: each multiplies kRowBlocks of 64 rows of x; kTileOutputs: of a tile, a multiple of 32.
template <int kWarpgroups, int kRowBlocks, int kTileOutputs>
struct BatchRowsTraits {
  static constexpr int kBlocks = kRowBlocks;
  static constexpr int kRows = 64 * kBlocks * kWarpgroups;
  static constexpr int kOutputs = kTileOutputs;
  static constexpr int kQuads = kOutputs / 8;  // of sums that a thread holds
  static constexpr bool kSliced = kOutputs <= kMostSlicedOutputs;
  static constexpr int kWarps = 4 * kWarpgroups;
  static constexpr int kConsumers = 32 * kWarps;
  static constexpr int kThreads = kConsumers + 128;
  /// Of a thread. Those that do not multiply give most of theirs away.
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 240 : 160,
                       kProducerRegisters = kWarpgroups == 2 ? 24 : 32;
  static_assert(kWarpgroups == 2 || kWarpgroups == 3, "registers are shared out between so many");
  static constexpr int kWeightBytes = kOutputs * kChunk * 2;  // of a stage
  static constexpr int kStageBytes = kWeightBytes + kRows * kChunk * 2;
  static constexpr int kMostStages = 8;
  static constexpr int kRingBytes = 225 * 1024;
  static constexpr int kStages = kRingBytes / kStageBytes < kMostStages ? kRingBytes / kStageBytes : kMostStages;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + 2 * 8 * kStages;  // stages are aligned by 1024
  static_assert(kSharedBytes <= 227 * 1024, "what a block can have");
  static_assert(kOutputs % 32 == 0, "slices are put together four quads at a time");
};

struct BatchRowsParams {
  CUtensorMap weight;  // [out_features, in_features], boxes of kOutputs x kChunk; where gated, eight gate channels
                       // beside their eight up channels
  CUtensorMap x;       // [num_rows, in_features], boxes of num_rows x kChunk
  void* y;             // [num_rows, out_features], half as wide where gated
  float4* sums;        // [tiles, split, kWarps, kBlocks, kQuads, 32]
  uint32_t* counts;    // [tiles, kWarps], slices whose sums are there; all 0 between runs
  int32_t out_features;
  int32_t num_rows;
  int32_t num_chunks;  // of inputs
  int32_t split;       // blocks that share a tile's inputs
  LinearOutput output;
  Gate gate;
};

namespace detail {

template <class Traits>
struct BatchRowsBlock {
  const BatchRowsParams& params;
  uint32_t stages;  // shared address
  int32_t tile, slice;
  Share chunks;

  __device__ __forceinline__ uint32_t full(int32_t stage) const {
    return stages + Traits::kStages * Traits::kStageBytes + 8 * stage;
  }
  __device__ __forceinline__ uint32_t empty(int32_t stage) const { return full(Traits::kStages + stage); }
  __device__ __forceinline__ uint32_t weight_at(int32_t stage) const { return stages + stage * Traits::kStageBytes; }
  __device__ __forceinline__ uint32_t x_at(int32_t stage) const { return weight_at(stage) + Traits::kWeightBytes; }
};

/// Of a lane and one of its row blocks: quad q has outputs 8 q + lane % 4 * 2 and the next one, of rows lane / 4 and,
/// in its second half, eight rows later, in the warp's 16 rows of the block.
template <class Traits>
using BatchSums = float[Traits::kBlocks][Traits::kQuads][4];

}  // namespace detail
}  // namespace kvant::ops::cuda
