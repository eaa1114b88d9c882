#pragma once

// Sums of an item over the warps of a cluster's blocks, through their shared memory, and then over its clusters.

#include <cstdint>

#include "attn/cuda/generic/decode_merge.cuh"

namespace kvant::attn::cuda {

/// Merges parts of an item that the blocks of whole clusters worked on: each block sums up its warps, then some
/// channels of some rows over the cluster. Sums keep the places that they have in a warp's stage.
template <class Traits>
class DecodeCluster : protected DecodeMerge<Traits> {
 protected:
  using Base = DecodeMerge<Traits>;
  using Base::acc_;
  using Base::add;
  using Base::Base;
  using Base::fetch_scales;
  using Base::g_;
  using Base::inverse_sum;
  using Base::kHeadDim;
  using Base::kRows;
  using Base::kRowTiles;
  using Base::kTiles;
  using Base::lane_;
  using Base::num_rows;
  using Base::over_tokens;
  using Base::p_;
  using Base::q_row_index;
  using Base::reference;
  using Base::shared_;
  using Base::sum_;
  using Base::sum_index;
  using Base::t_;
  using Base::warp_;
  using Base::write_lse;
  using typename Base::VCodec;

  /// A row's running maximum, its sum and four of its channels.
  struct Sums {
    float top, sum;
    float4 value;
  };
  /// What a thread merges, of each row tile: channels [channel, channel + 4) of row `row`, found at `four`. `subs`
  /// lanes, `width` apart, share this, each with sources of its own.
  struct Place {
    int32_t four, row, channel, sub, subs, width;
  };

  /// A warp's sums go to its first stages, where the other blocks find them.
  __device__ __forceinline__ void leave_sums() {
    __syncwarp();  // Other lanes have just read values from there.
    const float v_factor = Traits::kExact ? shared_.v_factor[warp_] : 1.0f;
    auto* sums = reinterpret_cast<float*>(shared_.stages[warp_]);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = 2 * t_ + j;
        const float sum = over_tokens(sum_[n][j]);
        if (g_ == 0) shared_.state[warp_][8 * n + row] = make_float2(sum > 0.0f ? reference(n, j) : -INFINITY, sum);
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          *reinterpret_cast<float2*>(sums + 8 * kHeadDim * n + sum_index(row, kHeadDim / 8 * g_ + 2 * i)) =
              make_float2(acc_[n][i][j] * v_factor, acc_[n][i][j + 2] * v_factor);
      }
    }
  }

  __device__ __forceinline__ void leave_nothing() {
    for (int32_t row = lane_; row < kRows; row += 32) shared_.state[warp_][row] = make_float2(-INFINITY, 0.0f);
  }

  /// Sums up what the cluster's blocks have left.
  __device__ void finish_in_cluster(const detail::Segment& s) {
    const int32_t rows = min(num_rows(s), kRows);
    this->sync_block();
    sum_up_warps(rows);
    arrive_at_cluster();
    const int32_t cluster = cluster_size(), rank = cluster_rank();
    const Place place = place_of(cluster, rank);
    // Without exact pages all warps have the same factor.
    const float v_factor = Traits::kExact ? 1.0f : fetch_scales(s).v * static_cast<float>(1 << VCodec::kShift);
    wait_for_cluster();
    Sums sums[kRowTiles];
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) sums[n] = gather(place, n, rows);
    arrive_at_cluster();  // Others' sums have been read.
    const int32_t num_clusters = (s.last_chunk - s.first_chunk + 1) >> (31 - __clz(cluster));
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      over_subs(place, sums[n]);
      scale(sums[n].value, v_factor);
    }
    if (num_clusters == 1)
      write(s, place, rows, sums);
    else
      merge_clusters(s, place, rows, cluster, rank, num_clusters, sums);
    wait_for_cluster();
  }

 private:
  static constexpr int kFours = 2 * kHeadDim;  ///< Groups of four channels in a row tile.
  static constexpr int kRowFours = kHeadDim / 4;
  static constexpr uint32_t kWarpStages = Traits::kStages * Traits::kStageBytes;
  static constexpr uint32_t kStates = 16 * kRowTiles * kFours;  ///< The block's states come after its sums.
  static_assert(!Traits::kClusters || kStates + 8 * kRows <= kWarpStages, "room for the states");

  /// Sums of the block's warps, in order, take the place of the first one's.
  __device__ __forceinline__ void sum_up_warps(int32_t rows) {
    const uint32_t stages = shared_address(shared_.stages[0]);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < kFours; i += Traits::kThreads) {
        if (8 * n + i / kRowFours >= rows) break;
        const auto four = static_cast<int32_t>(i + threadIdx.x);
        const int32_t row = 8 * n + four / kRowFours;
        const uint32_t address = stages + 16 * (n * kFours + four);
        float2 state[Traits::kWarps];
        float4 value[Traits::kWarps];
#pragma unroll
        for (int w = 0; w < Traits::kWarps; ++w) {
          state[w] = shared_.state[w][row];
          const uint4 bits = load_shared_16(address + kWarpStages * w);
          value[w] = make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                                 __uint_as_float(bits.w));
        }
        const Sums sums = sum_up(state, value, highest(state));
        store_shared_16(address, make_uint4(__float_as_uint(sums.value.x), __float_as_uint(sums.value.y),
                                            __float_as_uint(sums.value.z), __float_as_uint(sums.value.w)));
        if (four % kRowFours == 0) {
          store_shared_4(stages + kStates + 8 * row, __float_as_uint(sums.top));
          store_shared_4(stages + kStates + 8 * row + 4, __float_as_uint(sums.sum));
        }
      }
    }
  }

  /// A block has every cluster-th part of a row tile, each of its warps a quarter of that.
  __device__ __forceinline__ Place place_of(int32_t cluster, int32_t rank) const {
    const int32_t log_width = 31 - __clz(kFours / Traits::kWarps) - (31 - __clz(cluster));
    Place place;
    place.width = 1 << log_width, place.subs = 32 >> log_width, place.sub = lane_ >> log_width;
    place.four = ((Traits::kWarps * rank + warp_) << log_width) + (lane_ & (place.width - 1));
    place.row = place.four / kRowFours;
    place.channel = sum_index(place.row, 4 * (place.four % kRowFours)) % kHeadDim;  // Which undoes itself.
    return place;
  }

  /// This lane's share of the sums of the cluster's blocks.
  __device__ __forceinline__ Sums gather(const Place& place, int n, int32_t rows) const {
    constexpr int kSources = kFours / 128;
    const uint32_t stages = shared_address(shared_.stages[0]);
    float2 state[kSources];
    float4 value[kSources];
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      const uint32_t there = address_in_cluster(stages, kSources * place.sub + i);
      const bool is_row = 8 * n + place.row < rows;
      state[i] = is_row ? load_cluster_8(there + kStates + 8 * (8 * n + place.row)) : make_float2(-INFINITY, 0.0f);
      value[i] = is_row ? load_cluster_16(there + 16 * (kFours * n + place.four)) : make_float4(0, 0, 0, 0);
    }
    return sum_up(state, value, over_subs(place, highest(state)));
  }

  template <int kSources>
  __device__ __forceinline__ static float highest(const float2 (&state)[kSources]) {
    float top = state[0].x;
#pragma unroll
    for (int i = 1; i < kSources; ++i) top = fmaxf(top, state[i].x);
    return top;
  }
  /// Sums in order, against the maximum `top`.
  template <int kSources>
  __device__ __forceinline__ static Sums sum_up(const float2 (&state)[kSources], const float4 (&value)[kSources],
                                                float top) {
    Sums out = {top, 0.0f, make_float4(0, 0, 0, 0)};
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      // What has seen no key may have left no sums to read.
      if (state[i].x == -INFINITY) continue;
      const float factor = exp2_approx(state[i].x - top);
      out.sum = fmaf(factor, state[i].y, out.sum);
      add(out.value, factor, value[i]);
    }
    return out;
  }
  __device__ __forceinline__ static float over_subs(const Place& place, float top) {
    for (int32_t d = place.width; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    return top;
  }
  __device__ __forceinline__ static void over_subs(const Place& place, Sums& sums) {
    for (int32_t d = place.width; d < 32; d *= 2) {
      sums.sum += __shfl_xor_sync(0xffffffffu, sums.sum, d);
      sums.value.x += __shfl_xor_sync(0xffffffffu, sums.value.x, d);
      sums.value.y += __shfl_xor_sync(0xffffffffu, sums.value.y, d);
      sums.value.z += __shfl_xor_sync(0xffffffffu, sums.value.z, d);
      sums.value.w += __shfl_xor_sync(0xffffffffu, sums.value.w, d);
    }
  }
  __device__ __forceinline__ static void scale(float4& v, float factor) {
    v.x *= factor, v.y *= factor, v.z *= factor, v.w *= factor;
  }

  __device__ __forceinline__ void write(const detail::Segment& s, const Place& place, int32_t rows,
                                        const Sums (&sums)[kRowTiles]) const {
    if (place.sub != 0) return;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const int32_t row = 8 * n + place.row;
      if (row >= rows) continue;
      const int64_t index = q_row_index(s, s.row_tile * kRows + row);
      float4 value = sums[n].value;
      scale(value, inverse_sum(s, row, sums[n].top, sums[n].sum));
      detail::store_out(p_.out, p_.out_dtype, index * kHeadDim + place.channel, value);
      if (place.channel == 0) write_lse(s, index, sums[n].top, sums[n].sum);
    }
  }

  /// Blocks of one rank have the same channels. Each leaves its cluster's sums, and the last of them to come merges
  /// them in order.
  __device__ __forceinline__ void merge_clusters(const detail::Segment& s, const Place& place, int32_t rows,
                                                 int32_t cluster, int32_t rank, int32_t num_clusters,
                                                 Sums (&sums)[kRowTiles]) {
    const auto part_of = [&](int32_t chunk, int n) {
      return 2 * static_cast<int64_t>(chunk) * kRows + 8 * n + place.row;
    };
    if (place.sub == 0) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const int64_t part = part_of(this->block(), n);
        *reinterpret_cast<float4*>(p_.partial_out + part * kHeadDim + place.channel) = sums[n].value;
        // Every lane of a row writes the same.
        p_.partial_state[part] = make_float2(sums[n].top, sums[n].sum);
      }
    }
    this->sync_block();
    if (threadIdx.x == 0) {
      uint32_t* counter = p_.counters + s.first_chunk + rank;
      const bool is_last = add_release_acquire(counter, 1) + 1 == static_cast<uint32_t>(num_clusters);
      shared_.is_last = is_last ? 1 : 0;
      if (is_last) *counter = 0;
    }
    this->sync_block();
    if (shared_.is_last == 0) return;
    constexpr int kTogether = 4;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      float2 state[kTogether];
      float4 value[kTogether];
      Sums all = {-INFINITY, 0.0f, make_float4(0, 0, 0, 0)};
      for (int32_t first = 0; first < num_clusters; first += kTogether * place.subs) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int32_t index = first + i * place.subs + place.sub;
          const int64_t part = part_of(s.first_chunk + rank + index * cluster, n);
          const bool exists = index < num_clusters;
          state[i] = exists ? __ldcg(p_.partial_state + part) : make_float2(-INFINITY, 0.0f);
          value[i] = exists ? __ldcg(reinterpret_cast<const float4*>(p_.partial_out + part * kHeadDim + place.channel))
                            : make_float4(0, 0, 0, 0);
        }
        const Sums more = sum_up(state, value, over_subs(place, highest(state)));
        const float top = fmaxf(all.top, more.top);
        const float before = all.top == -INFINITY ? 0.0f : exp2_approx(all.top - top);
        const float factor = more.top == -INFINITY ? 0.0f : exp2_approx(more.top - top);
        scale(all.value, before);
        add(all.value, factor, more.value);
        all.sum = fmaf(all.sum, before, factor * more.sum);
        all.top = top;
      }
      over_subs(place, all);
      sums[n] = all;
    }
    write(s, place, rows, sums);
  }
};

}  // namespace kvant::attn::cuda
