#pragma once

// The main loop: scores, softmax and values of one tile after another.

#include <cstdint>

#include "attn/cuda/common/v_operand.cuh"
#include "attn/cuda/generic/decode_pages.cuh"

namespace kvant::attn::cuda {

/// The tiles whose copies are under way, oldest first. Without exact pages they are consecutive and need no memory.
template <bool kGaps, int kCount>
struct TileQueue {
  int32_t tiles[kCount];
  __device__ __forceinline__ void push(int32_t tile, int i) { tiles[i] = tile; }
  __device__ __forceinline__ void pop_and_push(int32_t tile) {
#pragma unroll
    for (int i = 0; i + 1 < kCount; ++i) tiles[i] = tiles[i + 1];
    tiles[kCount - 1] = tile;
  }
  __device__ __forceinline__ int32_t front(int32_t) const { return tiles[0]; }
};
template <int kCount>
struct TileQueue<false, kCount> {
  __device__ __forceinline__ void push(int32_t, int) {}
  __device__ __forceinline__ void pop_and_push(int32_t) {}
  __device__ __forceinline__ int32_t front(int32_t consecutive) const { return consecutive; }
};

/// Attends to the tiles of a segment, each warp to its part of them.
template <class Traits>
class DecodeTiles : protected DecodePages<Traits> {
 protected:
  using Base = DecodePages<Traits>;
  using typename Base::LaneCopies;
  using typename Base::TilePages;
  using KCodec = typename Traits::KCodec;
  using VCodec = typename Traits::VCodec;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kRowTiles = Traits::kRowTiles;
  static constexpr int kRows = Traits::kRows;
  static constexpr int kSteps = Traits::kSteps;
  static constexpr int kTiles = Traits::kTiles;
  static constexpr int kLaneDims = KTile<typename Traits::KCodec, Traits::kHeadDim>::kLaneDims;
  using Base::acc_;
  using Base::Base;
  using Base::base_factor_;
  using Base::batch_first_;
  using Base::bias_;
  using Base::cap_log2_;
  using Base::copy_tile;
  using Base::exact_factor_;
  using Base::g_;
  using Base::lane_copies;
  using Base::limit_;
  using Base::load_queries;
  using Base::mma;
  using Base::p_;
  using Base::pack;
  using Base::page_of;
  using Base::q_;
  using Base::stages_;
  using Base::sum_;
  using Base::t_;
  using Base::tile_pages;
  using Base::v_factor_;
  using Base::warp_;

  /// Scores, times log2(e), of the tile's 16 keys against all rows: c[n] holds keys g, g, g + 8, g + 8 by rows 2t, 2t +
  /// 1, 2t, 2t + 1.
  template <class Tile>
  __device__ __forceinline__ void scores(const Tile& k, const float (&factor)[kRowTiles][2],
                                         float (&c)[kRowTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      k.fragment(step, a);
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) mma(c[n], a, q_[n][step][0], q_[n][step][1]);
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[n][i] = fmaf(c[n][i], factor[n][i & 1], bias_[n][i & 1]);
    if (p_.soft_cap > 0.0f) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[n][i] = cap_log2_ * tanhf(c[n][i]);
    }
  }

  __device__ __forceinline__ bool visible(const detail::Segment& s, int32_t row, int32_t local_key) const {
    if (local_key >= s.kv_len || row >= s.q_len * p_.group) return false;
    const int32_t key = detail::global_position(local_key, p_.cp_rank, p_.cp_size, p_.cp_interleave);
    const int32_t i = row / p_.group;
    const int32_t block = s.global_len - s.q_len;
    int32_t position = block + i;
    if (p_.positions != nullptr) position = p_.positions[s.q_begin + i];
    if (p_.window > 0 && key <= position - p_.window) return false;
    if (key < block) return true;
    switch (p_.draft_mask) {
      case DraftMask::kCausal: return key <= block + i;
      case DraftMask::kFull: return true;
      case DraftMask::kPacked: {
        const int32_t j = key - block;
        return (p_.mask[static_cast<int64_t>(s.q_begin + i) * p_.mask_row_words + j / 32] >> (j % 32)) & 1u;
      }
    }
    return false;
  }

  template <class Tile>
  __device__ __forceinline__ void mask_tile(const detail::Segment& s, int32_t tile, float (&c)[kRowTiles][4],
                                            Tile& v) const {
    const int32_t first = tile * Traits::kTileTokens;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!visible(s, s.row_tile * kRows + 8 * n + 2 * t_ + (i & 1), first + g_ + 8 * (i / 2))) c[n][i] = -INFINITY;
          // Slots past the length may hold anything, NaN included, and 0 * NaN is NaN.
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + 2 * t_ + (i & 1) + 8 * (i / 2) >= s.kv_len) v.clear(i);
  }

  /// Moves the reference maximum when a score has outgrown it; scores become weights.
  __device__ __forceinline__ void softmax(float (&c)[kRowTiles][4]) {
    bool outgrown = false;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) outgrown |= c[n][i] > limit_[n][i & 1];
    if (__any_sync(0xffffffffu, outgrown)) rescale(c);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        c[n][i] = exp2_approx(c[n][i] + (detail::kRescaleSlack - limit_[n][i & 1]));
        sum_[n][i & 1] += c[n][i];
      }
    }
  }
  __device__ __forceinline__ void rescale(const float (&c)[kRowTiles][4]) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = fmaxf(c[n][j], c[n][j + 2]);
#pragma unroll
        for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        const float old = limit_[n][j] - detail::kRescaleSlack;
        const float moved = fmaxf(old, top);
        const float factor = exp2_approx(old - moved);
        limit_[n][j] = moved + detail::kRescaleSlack;
        sum_[n][j] *= factor;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          acc_[n][i][j] *= factor;
          acc_[n][i][j + 2] *= factor;
        }
      }
    }
  }

  template <class Tile>
  __device__ __forceinline__ void accumulate(const Tile& v, const float (&c)[kRowTiles][4]) {
    uint32_t b[kRowTiles][2];
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      b[n][0] = transpose_8x8(pack(c[n][0], c[n][1]));
      b[n][1] = transpose_8x8(pack(c[n][2], c[n][3]));
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      uint32_t a[4];
      v.fragment(i, a);
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) mma(acc_[n][i], a, b[n][0], b[n][1]);
    }
  }

  __device__ void attend(const detail::Segment& s) {
    const int32_t count = s.tile_end - s.tile_begin;
    const int32_t first = s.tile_begin + count * warp_ / Traits::kWarps;
    const int32_t last = static_cast<int32_t>(opaque(s.tile_begin + count * (warp_ + 1) / Traits::kWarps));
    batch_first_ = -64;
    const bool any_exact = attend_base(s, first, last);
    if constexpr (Traits::kExact) {
      if (any_exact) attend_exact(s, first, last);
    }
  }

  /// The next tile from `tile` on whose pages are (not) exact, or `last`.
  template <bool kWantExact>
  __device__ __forceinline__ int32_t next_tile(const detail::Segment& s, int32_t tile, int32_t last, TilePages& pages,
                                               bool& skipped) {
    for (; tile < last; ++tile) {
      pages = tile_pages(s, tile);
      if constexpr (!Traits::kExact) return tile;
      if (is_exact_page(pages.low) == kWantExact) return tile;
      skipped = true;
    }
    return last;
  }

  /// Pages of the base pool, through a ring of stages; returns whether there are exact ones too. Those are a second
  /// loop, so that they cost the first no registers.
  __device__ __forceinline__ bool attend_base(const detail::Segment& s, int32_t first, int32_t last) {
    constexpr int kAhead = Traits::kStages - 1;
    constexpr uint32_t kRing = Traits::kStages * Traits::kStageBytes;
    const LaneCopies copies = lane_copies(s.head);
    const LaneRead k_read = KTile<KCodec, kHeadDim>::lane_read(g_, t_);
    const LaneRead v_read = VTile<VCodec, kHeadDim>::lane_read(g_, t_);
    TileQueue<Traits::kExact, kAhead> under_way;
    TilePages pages;
    bool skipped = false;
    int32_t next = first;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      next = next_tile<false>(s, next, last, pages, skipped);
      under_way.push(next, i);
      if (next < last) copy_tile(copies, stages_ + i * Traits::kStageBytes, next++, pages);
      commit_copies();
    }
    // The queries' latency hides behind that of the first tiles.
    load_queries(s);
    const int32_t full_begin = s.full_begin, full_end = s.full_end;
    uint32_t from = stages_;
    uint32_t to = stages_ + kAhead * Traits::kStageBytes;
    for (int32_t tile = under_way.front(first); tile < last; tile = under_way.front(tile + 1)) {
      wait_copies<kAhead - 1>();
      __syncwarp();
      next = next_tile<false>(s, next, last, pages, skipped);
      under_way.pop_and_push(next);
      if (next < last) copy_tile(copies, to, next++, pages);
      commit_copies();

      KTile<KCodec, kHeadDim> k;
      k.load(from, from + Traits::kKScales, k_read);
      float c[kRowTiles][4];
      scores(k, base_factor_, c);
      VTile<VCodec, kHeadDim> v;
      v.load(from + Traits::kVRows, from + Traits::kVScales, v_read);
      if (tile < full_begin || tile >= full_end) mask_tile(s, tile, c, v);
      softmax(c);
      accumulate(v, c);
      to = from;
      from = from + Traits::kStageBytes == stages_ + kRing ? stages_ : from + Traits::kStageBytes;
    }
    return skipped;
  }

  __device__ void attend_exact(const detail::Segment& s, int32_t first, int32_t last) {
    // From here on the accumulators are in units of V itself.
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc_[n][i][j] *= v_factor_;
    v_factor_ = 1.0f;
    batch_first_ = -64;
    const PoolParams& pool = p_.exact;
    const int32_t in_page = (1 << p_.page_shift) - 1;
    TilePages pages;
    bool skipped = false;
    for (int32_t tile = next_tile<true>(s, first, last, pages, skipped); tile < last;
         tile = next_tile<true>(s, tile + 1, last, pages, skipped)) {
      const uint8_t* low = page_of(pool, pages.low);
      const uint8_t* high = page_of(pool, pages.high);
      const int32_t token = tile * Traits::kTileTokens;
      ExactKTile<kLaneDims, kHeadDim> k;
      const uint32_t k_head = pool.k.data + pool.k.data_head * s.head;
      k.load(low + k_head + ((token + g_) & in_page) * pool.k.data_token,
             high + k_head + ((token + 8 + g_) & in_page) * pool.k.data_token, t_);
      float c[kRowTiles][4];
      scores(k, exact_factor_, c);
      VTile<F16, kHeadDim> v;
      const uint32_t v_head = pool.v.data + pool.v.data_head * s.head;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v.load_row(i, (i < 2 ? low : high) + v_head + ((token + v_token(i, t_)) & in_page) * pool.v.data_token, g_);
      if (tile < s.full_begin || tile >= s.full_end) mask_tile(s, tile, c, v);
      softmax(c);
      accumulate(v, c);
    }
  }
};

}  // namespace kvant::attn::cuda
