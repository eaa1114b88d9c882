#pragma once

// Sums of a segment: over the warps of a block, then over the blocks of an item in a fixed order.

#include <cstdint>

#include "attn/cuda/generic/decode_tiles.cuh"

namespace kvant::attn::cuda {

/// Merges partial results and writes rows.
template <class Traits>
class DecodeMerge : protected DecodeTiles<Traits> {
 protected:
  using Base = DecodeTiles<Traits>;
  using typename Base::Extent;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kRowTiles = Traits::kRowTiles;
  static constexpr int kRows = Traits::kRows;
  static constexpr int kTiles = Traits::kTiles;
  using Base::acc_;
  using Base::Base;
  using Base::extent;
  using Base::g_;
  using Base::lane_;
  using Base::num_rows;
  using Base::p_;
  using Base::prefix_;
  using Base::q_row_index;
  using Base::shared_;
  using Base::sum_;
  using Base::t_;
  using Base::v_factor_;
  using Base::warp_;

  __device__ void finish(const detail::Segment& s, int32_t position, int32_t block_begin, int32_t share) {
    const int32_t rows = min(num_rows(s), kRows);
    combine_warps();
    const Extent e = extent(s.request);
    const int32_t item = s.head * e.row_tiles + s.row_tile;
    const int32_t item_begin = prefix_[s.request] + item * e.tiles();
    const int32_t first_block = item_begin / share;
    const int32_t last_block = (item_begin + e.tiles() - 1) / share;
    if (first_block == last_block) {
      write_rows(s, rows);
      __syncthreads();
      return;
    }
    const int32_t slot = 2 * blockIdx.x + (position == block_begin ? 0 : 1);
    store_partial(slot, rows);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      // An item is split where its first block's share ends, so that block names the item.
      uint32_t* counter = p_.counters + first_block;
      const uint32_t parts = static_cast<uint32_t>(last_block - first_block + 1);
      const uint32_t before = atomicAdd(counter, 1u);
      shared_.is_last = before + 1 == parts ? 1 : 0;
      if (shared_.is_last != 0) *counter = 0;
    }
    __syncthreads();
    if (shared_.is_last != 0) {
      __threadfence();
      merge_parts(s, rows, item_begin, first_block, last_block, share);
    }
    __syncthreads();
  }

  /// Leaves the block's sum in warp 0's shared rows.
  __device__ void combine_warps() {
    __syncthreads();  // partials lie over the stages
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) sum_[n][j] += __shfl_xor_sync(0xffffffffu, sum_[n][j], d);
        if (g_ == 0)
          shared_.state[warp_][8 * n + 2 * t_ + j] =
              make_float2(sum_[n][j] > 0.0f ? this->reference(n, j) : -INFINITY, sum_[n][j]);
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int channel = kHeadDim / 8 * g_ + 2 * i;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          *reinterpret_cast<float2*>(&shared_.partials.out[warp_][8 * n + 2 * t_ + j][channel]) =
              make_float2(acc_[n][i][j] * v_factor_, acc_[n][i][j + 2] * v_factor_);
        }
      }
    }
    __syncthreads();
    for (int32_t row = warp_; row < kRows; row += Traits::kWarps) {
      float top = -INFINITY;
#pragma unroll
      for (int w = 0; w < Traits::kWarps; ++w) top = fmaxf(top, shared_.state[w][row].x);
      float factor[Traits::kWarps];
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < Traits::kWarps; ++w) {
        factor[w] = top == -INFINITY ? 0.0f : exp2_approx(shared_.state[w][row].x - top);
        sum += factor[w] * shared_.state[w][row].y;
      }
      __syncwarp();
      for (int32_t d = lane_; d < kHeadDim; d += 32) {
        float value = 0.0f;
#pragma unroll
        for (int w = 0; w < Traits::kWarps; ++w) value += factor[w] * shared_.partials.out[w][row][d];
        shared_.partials.out[0][row][d] = value;
      }
      if (lane_ == 0) shared_.state[0][row] = make_float2(top, sum);
    }
    __syncthreads();
  }

  __device__ void store_partial(int32_t slot, int32_t rows) {
    float* out = p_.partial_out + static_cast<int64_t>(slot) * kRows * kHeadDim;
    for (int32_t i = threadIdx.x; i < rows * kHeadDim; i += Traits::kThreads)
      out[i] = shared_.partials.out[0][i / kHeadDim][i % kHeadDim];
    if (threadIdx.x < rows)
      p_.partial_state[static_cast<int64_t>(slot) * kRows + threadIdx.x] = shared_.state[0][threadIdx.x];
  }

  __device__ void merge_parts(const detail::Segment& s, int32_t rows, int32_t item_begin, int32_t first_block,
                              int32_t last_block, int32_t share) {
    const int32_t first_slot = 2 * first_block + (item_begin == first_block * share ? 0 : 1);
    const auto slot_of = [&](int32_t block) {
      return static_cast<int64_t>(block == first_block ? first_slot : 2 * block);
    };
    for (int32_t row = warp_; row < rows; row += Traits::kWarps) {
      float top = -INFINITY;
      for (int32_t b = first_block + lane_; b <= last_block; b += 32)
        top = fmaxf(top, __ldcg(&p_.partial_state[slot_of(b) * kRows + row]).x);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
      float value[kHeadDim / 32] = {};
      float sum = 0.0f;
      // A lane reads one part's state; all parts of the batch are then in flight together.
      for (int32_t batch = first_block; batch <= last_block; batch += 32) {
        float2 state = make_float2(-INFINITY, 0.0f);
        if (batch + lane_ <= last_block) state = __ldcg(&p_.partial_state[slot_of(batch + lane_) * kRows + row]);
        const float factor = state.x == -INFINITY ? 0.0f : exp2_approx(state.x - top);
        const float part_sum = factor * state.y;
        const int32_t count = min(32, last_block - batch + 1);
#pragma unroll 8
        for (int32_t b = 0; b < count; ++b) {
          const float part_factor = __shfl_sync(0xffffffffu, factor, b);
          sum += __shfl_sync(0xffffffffu, part_sum, b);
          const float* part = p_.partial_out + (slot_of(batch + b) * kRows + row) * kHeadDim;
#pragma unroll
          for (int i = 0; i < kHeadDim / 32; ++i) value[i] = fmaf(part_factor, __ldcg(part + lane_ + 32 * i), value[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) shared_.partials.out[0][row][lane_ + 32 * i] = value[i];
      if (lane_ == 0) shared_.state[0][row] = make_float2(top, sum);
    }
    __syncthreads();
    write_rows(s, rows);
  }

  __device__ void write_rows(const detail::Segment& s, int32_t rows) {
    for (int32_t row = warp_; row < rows; row += Traits::kWarps) {
      const int64_t index = q_row_index(s, s.row_tile * kRows + row);
      const float2 state = shared_.state[0][row];
      float denominator = state.y;
      if (p_.sinks != nullptr && state.x != -INFINITY) {
        const int32_t q_head = s.head * p_.group + (s.row_tile * kRows + row) % p_.group;
        denominator += exp2f(p_.sinks[q_head] * detail::kLog2e - state.x);
      }
      const float inverse = state.x == -INFINITY ? 0.0f : 1.0f / denominator;
      for (int32_t d = lane_; d < kHeadDim; d += 32)
        detail::store_out(p_.out, p_.out_dtype, index * kHeadDim + d, shared_.partials.out[0][row][d] * inverse);
      if (p_.lse != nullptr && lane_ == 0)
        p_.lse[index] = state.x == -INFINITY ? -INFINITY : (state.x + log2f(state.y)) * detail::kLn2;
    }
  }
};

}  // namespace kvant::attn::cuda
