#pragma once

// Sums of a segment: over the warps of a block, then over the blocks of an item in a fixed order.

#include <cstdint>

#include "attn/cuda/generic/decode_tiles.cuh"
#include "attn/cuda/generic/shared_rows.cuh"

namespace kvant::attn::cuda {

/// Merges partial results and writes rows.
template <class Traits>
class DecodeMerge : protected DecodeTiles<Traits> {
 protected:
  using Base = DecodeTiles<Traits>;
  using Base::kHeadDim;
  using Base::kRows;
  using Base::kRowTiles;
  using Base::kTiles;
  /// A warp holds a row in pieces of 128 channels, four of each a lane.
  static constexpr int kPieces = (kHeadDim + 127) / 128;
  using Base::acc_;
  using Base::alone;
  using Base::Base;
  using Base::g_;
  using Base::lane_;
  using Base::num_rows;
  using Base::p_;
  using Base::q_row_index;
  using Base::reference;
  using Base::shared_;
  using Base::stages_;
  using Base::sum_;
  using Base::sync_team;
  using Base::t_;
  using Base::to_;
  using Base::warp_;

  /// Whether this team has written the item's rows.
  __device__ bool finish(const detail::Segment& s) {
    const int32_t rows = min(num_rows(s), kRows);
    __syncwarp();  // A stage takes sums that other lanes have just read values from.
    if (alone()) {
      if constexpr (Traits::kAlone) write_rows(s, rows);
      __syncwarp();
      return true;
    }
    const bool whole = s.first_chunk == s.last_chunk;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      share_sums(n);
      this->sync_block();
      for (int32_t row = 8 * n + warp_; row < min(rows, 8 * n + 8); row += Traits::kWarps) combine_row(s, row, whole);
      this->sync_block();
    }
    if (whole) return true;
    if (threadIdx.x == 0) {
      // One item at most starts in a chunk and ends in a later one, so that chunk names the item.
      uint32_t* counter = p_.counters + s.first_chunk;
      const auto parts = static_cast<uint32_t>(s.last_chunk - s.first_chunk + 1);
      const bool is_last = add_release_acquire(counter, 1) + 1 == parts;
      shared_.is_last = is_last ? 1 : 0;
      if (is_last) *counter = 0;
    }
    this->sync_block();
    if (shared_.is_last == 0) return false;
    for (int32_t row = warp_; row < rows; row += kMerged * Traits::kWarps) merge_rows(s, row, rows);
    this->sync_block();
    return true;
  }

  /// The item's rows, which are shared, are those of its own pages. They are merged with those of the shared pages at
  /// the end, when parts of these are likely to be there: until then there is other work to do.
  __device__ __forceinline__ void settle(const detail::Segment& s) {
    auto& later = shared_.later[alone() ? warp_ : 0];
    if (later.count == detail::Later::kMost) merge_shared(&merge_shared_rows_apart);
    sync_team();
    if ((alone() ? lane_ : threadIdx.x) == 0) {
      later.items[later.count] = make_int2(s.request, s.head);
      ++later.count;
    }
    sync_team();
  }
  /// Merges what settle has put off.
  template <class MergeRows>
  __device__ __forceinline__ void merge_shared(const MergeRows& merge_rows) {
    auto& later = shared_.later[alone() ? warp_ : 0];
    const int32_t thread = alone() ? lane_ : static_cast<int32_t>(threadIdx.x), count = later.count;
    if (thread < count) wait_for_parts(p_.shared, later.items[thread].x, later.items[thread].y, shared_.part_tiles);
    sync_team();  // What one thread has seen written all may read.
#pragma unroll 1
    for (int32_t i = 0; i < count; ++i)
      merge_rows(p_.shared, later.items[i].x, later.items[i].y, shared_.part_tiles, thread,
                 alone() ? 32 : Traits::kThreads);
    sync_team();
    if (thread == 0) later.count = 0;
    sync_team();
  }

  /// Where a chunk leaves a row of its part: at most one item reaches into it from before, and one starts there and
  /// goes on.
  __device__ __forceinline__ static int64_t part_row(const detail::Segment& s, int32_t chunk, int32_t row) {
    return (2 * static_cast<int64_t>(chunk) + (chunk == s.first_chunk ? 1 : 0)) * kRows + row;
  }

  /// A warp's sums of row tile n go to the stage that it has read last.
  __device__ __forceinline__ void share_sums(int n) {
    const uint32_t stage = to_ - stages_;
    float* sums = sums_of(warp_, stage);
    if (lane_ == 0) shared_.sums[warp_] = stage;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * t_ + j;
      const float sum = over_tokens(sum_[n][j]);
      if (g_ == 0) shared_.state[warp_][8 * n + row] = make_float2(sum > 0.0f ? reference(n, j) : -INFINITY, sum);
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        *reinterpret_cast<float2*>(sums + sum_index(row, kHeadDim / 8 * g_ + 2 * i)) =
            make_float2(acc_[n][i][j], acc_[n][i][j + 2]);
    }
  }
  __device__ __forceinline__ float* sums_of(int warp, uint32_t stage) const {
    return Traits::kSumsInStage ? reinterpret_cast<float*>(&shared_.stages[warp][0][0] + stage)
                                : &shared_.sums_beside[warp * 2 * kHeadDim].x;
  }
  /// Four channels stay together; lanes that write a row tile spread over the banks.
  __device__ __forceinline__ static int sum_index(int row, int channel) {
    const int four = channel / 4;
    return kHeadDim * row + 4 * (four ^ (four / 8 % 4) ^ (row / 2 % 2 * 4)) + channel % 4;
  }

  /// Sums a row over the warps; it is a result, or a part of one.
  __device__ __forceinline__ void combine_row(const detail::Segment& s, int32_t row, bool whole) {
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) top = fmaxf(top, shared_.state[w][row].x);
    float factor[Traits::kWarps];
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) {
      factor[w] = top == -INFINITY ? 0.0f : exp2_approx(shared_.state[w][row].x - top);
      sum += factor[w] * shared_.state[w][row].y;
      factor[w] *= shared_.v_factor[w];
    }
    float4 value[kPieces] = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
#pragma unroll
      for (int w = 0; w < Traits::kWarps; ++w)
        if (is_live(i))
          add(value[i], factor[w],
              *reinterpret_cast<const float4*>(sums_of(w, shared_.sums[w]) + sum_index(row % 8, channel_of(i))));
    if (whole) {
      write_row(s, row, top, sum, value);
      return;
    }
    const int64_t index = part_row(s, this->block(), row);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (is_live(i)) *reinterpret_cast<float4*>(p_.partial_out + index * kHeadDim + channel_of(i)) = value[i];
    if (lane_ == 0) p_.partial_state[index] = make_float2(top, sum);
  }

  /// Rows that a warp merges at once, so that one waits for memory while the other does.
  static constexpr int kMerged = kRowTiles > 1 ? 2 : 1;
  /// Sums rows over their item's parts, in order: `row` and the ones every kWarps after it.
  __device__ __forceinline__ void merge_rows(const detail::Segment& s, int32_t row, int32_t rows) {
    constexpr int kTogether = 16 / kPieces, kStride = 2 * kRows * kHeadDim;
    const int32_t parts = s.last_chunk - s.first_chunk + 1;
    const float* first_part = p_.partial_out + part_row(s, s.first_chunk, row) * kHeadDim;
    const float* later_parts = first_part - kRows * kHeadDim;  // Their slots are the first of their chunks.
    const auto is_row = [&](int m) { return m == 0 || row + m * Traits::kWarps < rows; };
    const auto load = [&](int32_t first, float4(&parts_of)[kMerged][kTogether][kPieces]) {
#pragma unroll
      for (int m = 0; m < kMerged; ++m) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const float* part = j == 0 && first == 0 ? first_part : later_parts + first * kStride + j * kStride;
#pragma unroll
          for (int i = 0; i < kPieces; ++i)
            parts_of[m][j][i] =
                is_live(i) && is_row(m) && first + j < parts
                    ? __ldcg(reinterpret_cast<const float4*>(part + m * Traits::kWarps * kHeadDim + channel_of(i)))
                    : make_float4(0, 0, 0, 0);
        }
      }
    };
    const auto state_of = [&](int m, int32_t part) {
      return part < parts && is_row(m)
                 ? __ldcg(&p_.partial_state[part_row(s, s.first_chunk + part, row + m * Traits::kWarps)])
                 : make_float2(-INFINITY, 0.0f);
    };
    float4 together[kMerged][kTogether][kPieces];
    load(0, together);
    // A lane reads one part's state.
    float2 state[kMerged];
    float top[kMerged], sum[kMerged] = {}, factor[kMerged] = {};
#pragma unroll
    for (int m = 0; m < kMerged; ++m) {
      state[m] = state_of(m, lane_);
      top[m] = state[m].x;
      for (int32_t first = 32; first < parts; first += 32) top[m] = fmaxf(top[m], state_of(m, first + lane_).x);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) top[m] = fmaxf(top[m], __shfl_xor_sync(0xffffffffu, top[m], d));
    }
    float4 value[kMerged][kPieces] = {};
    for (int32_t first = 0; first < parts; first += kTogether) {
      if (first % 32 == 0) {
#pragma unroll
        for (int m = 0; m < kMerged; ++m) {
          if (first > 0) state[m] = state_of(m, first + lane_);
          factor[m] = state[m].x == -INFINITY ? 0.0f : exp2_approx(state[m].x - top[m]);
          sum[m] = fmaf(factor[m], state[m].y, sum[m]);
        }
      }
      if (first > 0) load(first, together);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (j == kTogether / 2 && first + j >= parts) break;
#pragma unroll
        for (int m = 0; m < kMerged; ++m) {
          // Beyond the last part the factor is 0.
          const float part_factor = __shfl_sync(0xffffffffu, factor[m], first % 32 + j);
#pragma unroll
          for (int i = 0; i < kPieces; ++i) add(value[m][i], part_factor, together[m][j][i]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kMerged; ++m) {
#pragma unroll
      for (int d = 1; d < 32; d *= 2) sum[m] += __shfl_xor_sync(0xffffffffu, sum[m], d);
      if (is_row(m)) write_row(s, row + m * Traits::kWarps, top[m], sum[m], value[m]);
    }
  }

  /// The rows of a warp that works alone, from its accumulators.
  __device__ __forceinline__ void write_rows(const detail::Segment& s, int32_t rows) {
    const float v_factor = shared_.v_factor[warp_];
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float sum = over_tokens(sum_[n][j]);
        const int32_t row = 8 * n + 2 * t_ + j;
        if (row >= rows) continue;
        const int64_t index = q_row_index(s, s.row_tile * kRows + row);
        const float top = sum > 0.0f ? reference(n, j) : -INFINITY;
        const float factor = v_factor * inverse_sum(s, row, top, sum);
#pragma unroll
        for (int i = 0; i < kTiles; i += 2) {
          const float4 v = make_float4(acc_[n][i][j] * factor, acc_[n][i][j + 2] * factor, acc_[n][i + 1][j] * factor,
                                       acc_[n][i + 1][j + 2] * factor);
          store(s, index * kHeadDim + kHeadDim / 8 * g_ + 2 * i, v);
        }
        if (g_ == 0) write_lse(s, index, top, sum);
      }
    }
  }
  /// The sum over the lanes that hold other tokens of the same row.
  __device__ __forceinline__ static float over_tokens(float sum) {
#pragma unroll
    for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    return sum;
  }

  __device__ __forceinline__ void write_row(const detail::Segment& s, int32_t row, float top, float sum,
                                            const float4 (&value)[kPieces]) {
    const int64_t index = q_row_index(s, s.row_tile * kRows + row);
    const float inverse = inverse_sum(s, row, top, sum);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 v =
          make_float4(value[i].x * inverse, value[i].y * inverse, value[i].z * inverse, value[i].w * inverse);
      if (is_live(i)) store(s, index * kHeadDim + channel_of(i), v);
    }
    if (lane_ == 0) write_lse(s, index, top, sum);
  }

  /// Whether the item's leading pages are another's work.
  __device__ __forceinline__ static bool is_shared(const detail::Segment& s) {
    return Traits::kShares && s.first_page > 0;
  }
  __device__ __forceinline__ void store(const detail::Segment& s, int64_t index, float4 value) const {
    if constexpr (Traits::kShares) {
      if (is_shared(s)) {
        *reinterpret_cast<float4*>(p_.shared.own_out + index) = value;
        return;
      }
    }
    detail::store_out(p_.out, p_.out_dtype, index, value);
  }
  __device__ __forceinline__ void write_lse(const detail::Segment& s, int64_t index, float top, float sum) const {
    float* lse = p_.lse;
    if constexpr (Traits::kShares) lse = is_shared(s) ? p_.shared.own_lse : lse;
    if (lse != nullptr) lse[index] = top == -INFINITY ? -INFINITY : (top + log2f(sum)) * kLnOf2;
  }
  /// What a row's values are multiplied by, its sink counted.
  __device__ __forceinline__ float inverse_sum(const detail::Segment& s, int32_t row, float top, float sum) const {
    if (top == -INFINITY) return 0.0f;
    if (p_.sinks != nullptr && !is_shared(s)) {
      const int32_t q_head = s.head * p_.group + (s.row_tile * kRows + row) % p_.group;
      sum += exp2f(p_.sinks[q_head] * kLog2OfE - top);
    }
    return 1.0f / sum;
  }
  __device__ __forceinline__ int channel_of(int piece) const { return 128 * piece + 4 * lane_; }
  __device__ __forceinline__ bool is_live(int piece) const {
    return kHeadDim % 128 == 0 || channel_of(piece) < kHeadDim;
  }
  __device__ __forceinline__ static void add(float4& sum, float factor, float4 v) {
    sum.x = fmaf(factor, v.x, sum.x), sum.y = fmaf(factor, v.y, sum.y);
    sum.z = fmaf(factor, v.z, sum.z), sum.w = fmaf(factor, v.w, sum.w);
  }
};

}  // namespace kvant::attn::cuda
