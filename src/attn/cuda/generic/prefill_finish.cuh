#pragma once

// From sums to rows in memory; parts of an item that was cut are merged in a fixed order.

#include <cstdint>

#include "attn/cuda/generic/prefill_tiles.cuh"

namespace kvant::attn::cuda {

template <class Traits>
class PrefillFinish : protected PrefillTiles<Traits> {
 protected:
  using Base = PrefillTiles<Traits>;
  using OutRows = typename Traits::OutRows;
  static constexpr int kRows = Traits::kRows;
  static constexpr int kRowTiles = Traits::kRowTiles;
  static constexpr int kDimV = Traits::kDimV;
  static constexpr int kValueTiles = Traits::kWarpDimV / 8;
  using Base::acc_;
  using Base::Base;
  using Base::first_row;
  using Base::lane_;
  using Base::limit_;
  using Base::missing_bias;
  using Base::p_;
  using Base::q_row_index;
  using Base::row_of;
  using Base::shared_;
  using Base::sum_;
  using Base::warp_;

  /// What a block takes of the list of items, or of that of tiles.
  struct Share {
    int32_t begin, end;
    int32_t tiles;  ///< Of a share, 0 when items are whole.
  };
  __device__ __forceinline__ Share share_of_block() {
    const auto grid = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
    const auto scan = [&](bool whole) {
      if constexpr (Traits::kPipelined)
        return this->scan_requests(whole);
      else
        return scan_prefill_requests<Traits>(p_, shared_, whole);
    };
    int32_t total = scan(true);
    if (p_.batch_invariant || total >= Base::kItemsPerBlock * grid) return {min(block, total), total, 0};
    total = scan(false);
    const int32_t tiles = max((total + grid - 1) / grid, Base::kMinShare);
    const int32_t begin = min(block * tiles, total);
    return {begin, min(begin + tiles, total), tiles};
  }

  /// The last block to run out of whole items leaves the counters as it found them. By one thread.
  __device__ void leave() const {
    const auto grid = static_cast<int32_t>(gridDim.x);
    uint32_t* counters = p_.counters + grid;
    if (atomicAdd(counters + 1, 1u) + 1 != static_cast<uint32_t>(grid)) return;
    counters[0] = 0;
    counters[1] = 0;
  }

  /// `share` is 0 when items are whole.
  __device__ void finish(const PrefillSegment& s, int32_t position, int32_t block_begin, int32_t share) {
    add_up_rows();
    const int32_t first_block = share == 0 ? 0 : s.item_begin / share;
    const int32_t last_block = share == 0 ? 0 : (s.item_begin + s.item_tiles - 1) / share;
    if (first_block == last_block) {
      write_rows(s);
      return;
    }
    store_part(s, 2 * static_cast<int32_t>(blockIdx.x) + (position == block_begin ? 0 : 1));
    __threadfence();
    Traits::sync_workers();
    if (Traits::thread() == 0) {
      // An item is cut where its first block's share ends, so that block names the item.
      uint32_t* counter = p_.counters + first_block;
      shared_.is_last = atomicAdd(counter, 1u) == static_cast<uint32_t>(last_block - first_block) ? 1 : 0;
      if (shared_.is_last != 0) *counter = 0;
    }
    Traits::sync_workers();
    if (shared_.is_last == 0) return;
    __threadfence();
    merge_parts(s, first_block, last_block, s.item_begin == first_block * share ? 0 : 1);
  }

 private:
  /// Afterwards the lanes of a row agree on its sum, and its reference is that of the true scores.
  __device__ void add_up_rows() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum_[m][h] += __shfl_xor_sync(0xffffffffu, sum_[m][h], 1);
        sum_[m][h] += __shfl_xor_sync(0xffffffffu, sum_[m][h], 2);
        limit_[m][h] = sum_[m][h] > 0.0f ? limit_[m][h] + missing_bias(row_of(m, h)) : -INFINITY;
      }
    }
  }

  /// What a row's sum of values is multiplied by.
  __device__ float inverse_of(const PrefillSegment& s, int32_t row, float top, float sum) const {
    if (top == -INFINITY) return 0.0f;
    if (p_.sinks != nullptr) {
      const int32_t q_head = s.head * p_.group + (s.row_tile * kRows + row) % p_.group;
      sum += exp2f(p_.sinks[q_head] * kLog2OfE - top);
    }
    return 1.0f / sum;
  }
  __device__ void write_lse(int64_t index, float top, float sum) const {
    if (p_.lse != nullptr) p_.lse[index] = top == -INFINITY ? -INFINITY : (top + log2f(sum)) * kLnOf2;
  }

  __device__ void write_rows(const PrefillSegment& s) {
    const bool staged = p_.out_dtype != DType::kF32;
    Traits::Products::release_queries();
    const uint32_t rows = shared_address(shared_.q);
    const int32_t first_channel = Traits::Products::first_channel(warp_);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32_t row = row_of(m, h);
        const bool valid = row < s.num_rows;
        const int64_t index = valid ? q_row_index(s, row) : 0;
        const float factor = valid ? inverse_of(s, row, limit_[m][h], sum_[m][h]) * s.v.factor : 0.0f;
        if (valid && lane_ % 4 == 0 && first_channel == 0) write_lse(index, limit_[m][h], sum_[m][h]);
        if (staged) {
          // This warp's own query rows are of no more use.
#pragma unroll
          for (int i = 0; i < kValueTiles; ++i) {
            const float low = acc_[m][i][2 * h] * factor, high = acc_[m][i][2 * h + 1] * factor;
            store_shared_4(rows + OutRows::offset(row, first_channel / 8 + i) + lane_ % 4 * 4,
                           p_.out_dtype == DType::kBf16 ? pack_bf16(low, high) : pack_f16(low, high));
          }
        } else if (valid) {
          auto* out = static_cast<float*>(p_.out) + index * p_.head_dim_v + first_channel + lane_ % 4 * 2;
#pragma unroll
          for (int i = 0; i < kValueTiles; ++i) {
            if (first_channel + 8 * i < p_.head_dim_v)
              *reinterpret_cast<float2*>(out + 8 * i) =
                  make_float2(acc_[m][i][2 * h] * factor, acc_[m][i][2 * h + 1] * factor);
          }
        }
      }
    }
    if (!staged) return;
    __syncwarp();
    auto* out = static_cast<uint16_t*>(p_.out);
#pragma unroll(Traits::kRoles ? 4 : 2)
    for (int i = lane_; i < 16 * kRowTiles * kValueTiles; i += 32) {
      const int32_t row = first_row() + i / kValueTiles, chunk = first_channel / 8 + i % kValueTiles;
      if (row >= s.num_rows || 8 * chunk >= p_.head_dim_v) continue;
      *reinterpret_cast<uint4*>(out + q_row_index(s, row) * p_.head_dim_v + 8 * chunk) =
          load_shared_16(rows + OutRows::offset(row, chunk));
    }
  }

  __device__ void store_part(const PrefillSegment& s, int32_t slot) const {
    const int64_t first = static_cast<int64_t>(slot) * kRows;
    const int32_t first_channel = Traits::Products::first_channel(warp_);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32_t row = row_of(m, h);
        if (row >= s.num_rows) continue;
        if (lane_ % 4 == 0 && first_channel == 0) p_.partial_state[first + row] = make_float2(limit_[m][h], sum_[m][h]);
        float* out = p_.partial_out + (first + row) * kDimV + first_channel + lane_ % 4 * 2;
#pragma unroll
        for (int i = 0; i < kValueTiles; ++i)
          *reinterpret_cast<float2*>(out + 8 * i) = make_float2(acc_[m][i][2 * h], acc_[m][i][2 * h + 1]);
      }
    }
  }

  /// Four channels of a row a thread and round.
  __device__ void merge_parts(const PrefillSegment& s, int32_t first_block, int32_t last_block, int32_t first_offset) {
    for (int32_t i = Traits::thread(); i < s.num_rows * (kDimV / 4); i += Traits::kWorkers) {
      const int32_t row = i / (kDimV / 4), channel = i % (kDimV / 4) * 4;
      float top = -INFINITY, sum = 0.0f;
      float4 value = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int32_t b = first_block; b <= last_block; ++b) {
        const int64_t at = (2 * static_cast<int64_t>(b) + (b == first_block ? first_offset : 0)) * kRows + row;
        const float2 state = __ldcg(&p_.partial_state[at]);
        const float4 part = __ldcg(reinterpret_cast<const float4*>(p_.partial_out + at * kDimV + channel));
        if (state.x == -INFINITY) continue;
        const float moved = fmaxf(top, state.x);
        const float old_factor = exp2_approx(top - moved), factor = exp2_approx(state.x - moved);
        top = moved;
        sum = fmaf(sum, old_factor, factor * state.y);
        value.x = fmaf(value.x, old_factor, factor * part.x);
        value.y = fmaf(value.y, old_factor, factor * part.y);
        value.z = fmaf(value.z, old_factor, factor * part.z);
        value.w = fmaf(value.w, old_factor, factor * part.w);
      }
      const int64_t index = q_row_index(s, row);
      const float inverse = inverse_of(s, row, top, sum) * s.v.factor;
      if (channel < p_.head_dim_v) {
        store_two(p_.out, p_.out_dtype, index * p_.head_dim_v + channel, value.x * inverse, value.y * inverse);
        store_two(p_.out, p_.out_dtype, index * p_.head_dim_v + channel + 2, value.z * inverse, value.w * inverse);
      }
      if (channel == 0) write_lse(index, top, sum);
    }
  }
};

}  // namespace kvant::attn::cuda
