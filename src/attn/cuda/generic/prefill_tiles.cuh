#pragma once

// The main loop: scores, softmax and values of one tile of keys after another.

#include <cstdint>

#include "attn/cuda/generic/prefill_pages.cuh"

namespace kvant::attn::cuda {

/// Attends to the tiles of a segment; a warp holds 16 * kRowTiles rows and sees every key. Traits::Products does both
/// products: c[m][n] holds rows g and g + 8 by keys 8 n + 2 t and 8 n + 2 t + 1, for lane 4 g + t.
template <class Traits>
class PrefillTiles : protected PrefillPages<Traits> {
 protected:
  using Base = PrefillPages<Traits>;
  using Products = typename Traits::Products;
  static constexpr int kRowTiles = Traits::kRowTiles;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kValueTiles = Traits::kWarpDimV / 8;
  /// Scores may exceed the running reference by this much (a factor 2^8) before it moves: P stays within f16.
  static constexpr float kSlack = 8.0f;
  /// Stands for "no score yet": below every real score, and finite, so that differences of it are numbers.
  static constexpr float kNoScore = -1e30f;
  using Base::Base;
  using Base::finish_copies;
  using Base::lane_;
  using Base::load_entry;
  using Base::load_queries;
  using Base::p_;
  using Base::shared_;
  using Base::start_copies;
  using Base::warp_;

  using Scores = float[kRowTiles][kKeyTiles][4];

  /// `while_copying` is called once, between the start of copies and the first tile.
  template <class WhileCopying>
  __device__ void attend(const PrefillSegment& s, const WhileCopying& while_copying) {
    int32_t tile = s.tile_begin;
    int32_t entry = load_entry(s, tile);
    int32_t next_entry = load_entry(s, tile + 1);
    this->note_scales(s, 0);
    start_copies(s, tile, entry, 0);
    load_queries(s);
    while_copying();
    start_rows();
    for (int stage = 0; tile < s.tile_end; ++tile, stage ^= 1) {
      finish_copies(s, tile, entry, stage);
      Products::publish_operands();
      __syncthreads();  // this tile is whole, and nobody reads the other stage any more
      if (tile + 1 < s.tile_end) start_copies(s, tile + 1, next_entry, stage ^ 1);
      entry = next_entry;
      next_entry = load_entry(s, tile + 2);
      if (Products::first_row_together(first_row()) >= s.num_rows) continue;
      Scores c;
      Products::score(shared_address(shared_.q), shared_address(shared_.k[0]) + stage * sizeof(shared_.k[0]),
                      first_row(), c);
      if (p_.soft_cap > 0.0f) cap(s, c);
      if (seen_in_part(s, tile)) mask(s, tile, c);
      Factors factors;
      find_factors(s, factors);
      softmax(c, factors);
      Products::accumulate(shared_address(shared_.v[0]) + stage * sizeof(shared_.v[0]), c, acc_);
    }
  }

  __device__ __forceinline__ int32_t first_row() const { return Products::first_row(warp_); }
  /// Row of the tile of this thread's value h (0 or 1) of row tile m.
  __device__ __forceinline__ int32_t row_of(int m, int h) const { return first_row() + 16 * m + lane_ / 4 + 8 * h; }
  /// What a row's scores lack, in units of the exponent of 2.
  __device__ __forceinline__ float missing_bias(int32_t row) const {
    if constexpr (Traits::kConditioned) {
      if (p_.soft_cap <= 0.0f) return p_.softmax_scale * kLog2OfE * shared_.bias[row];
    }
    return 0.0f;
  }

  float acc_[kRowTiles][kValueTiles][4];
  float limit_[kRowTiles][2];  ///< Reference maximum.
  float sum_[kRowTiles][2];

  __device__ void start_rows() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        limit_[m][h] = kNoScore;
        sum_[m][h] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kValueTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc_[m][i][j] = 0.0f;
    }
  }

 private:
  /// From a product to a score. Never 0, so that a masked product stays -inf.
  __device__ __forceinline__ float factor_of(const PrefillSegment& s, int32_t row, float unit) const {
    float factor = unit * s.k.factor;
    if constexpr (!Traits::kBf16Math) factor *= power_of_two(shared_.exponent[row]);
    return fmaxf(factor, 0x1p-126f);
  }

 protected:
  /// From the products of each row to exponents of 2.
  using Factors = float[kRowTiles][2];
  __device__ __forceinline__ void find_factors(const PrefillSegment& s, Factors& factors) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        factors[m][h] = p_.soft_cap > 0.0f ? 1.0f : factor_of(s, row_of(m, h), p_.softmax_scale * kLog2OfE);
  }
  /// Whether some row sees a part of the tile only. Both bounds are read at once.
  __device__ __forceinline__ static bool seen_in_part(const PrefillSegment& s, int32_t tile) {
    return (static_cast<int>(tile < s.full_begin) | static_cast<int>(tile >= s.full_end)) != 0;
  }

  __device__ __forceinline__ void cap(const PrefillSegment& s, Scores& c) const {
    const float unit = p_.softmax_scale / p_.soft_cap;
    const float cap_log2 = p_.soft_cap * kLog2OfE;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float factor = factor_of(s, row_of(m, h), unit);
        float bias = 0.0f;
        if constexpr (Traits::kConditioned) bias = unit * shared_.bias[row_of(m, h)];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            c[m][n][2 * h + j] = cap_log2 * tanh_by_exp(fmaf(c[m][n][2 * h + j], factor, bias));
      }
    }
  }

 private:
  /// The keys [begin, end) of this rank that a row may see, and from which on its packed mask decides.
  struct RowKeys {
    int32_t begin, end, block;
    const uint32_t* bits;
  };
  __device__ __forceinline__ RowKeys row_keys(const PrefillSegment& s, int32_t row) const {
    RowKeys keys{0, 0, INT32_MAX, nullptr};
    if (row >= s.num_rows) return keys;
    const int32_t i = (s.row_tile * Traits::kRows + row) / p_.group;
    const int32_t block = s.global_len - s.q_len;
    keys.end = this->local(p_.draft_mask == DraftMask::kCausal ? block + i + 1 : s.global_len);
    if (p_.window > 0) {
      const int32_t position = p_.positions != nullptr ? p_.positions[s.q_begin + i] : block + i;
      keys.begin = this->local(position - p_.window + 1);
    }
    if (p_.draft_mask == DraftMask::kPacked) {
      keys.block = this->local(block);
      keys.bits = p_.mask + static_cast<int64_t>(s.q_begin + i) * p_.mask_row_words;
    }
    return keys;
  }
  /// Bit 2 n + j: whether the row's packed mask lets it see key 8 n + 2 t + j of a tile. Rolled: few tiles need it, and
  /// the main loop's code must stay small.
  __device__ __forceinline__ uint32_t packed_keys(const PrefillSegment& s, int32_t tile, const RowKeys& keys) const {
    uint32_t seen = 0;
#pragma unroll 1
    for (int i = 0; i < 2 * kKeyTiles; ++i) {
      const int32_t key = tile * kKeys + 8 * (i / 2) + lane_ % 4 * 2 + i % 2;
      bool visible = key < keys.block;
      if (!visible && key < keys.end) {
        const int32_t j = global_key(key, p_.cp_rank, p_.cp_size, p_.cp_interleave) - (s.global_len - s.q_len);
        visible = (keys.bits[j / 32] >> (j % 32) & 1u) != 0;
      }
      seen |= static_cast<uint32_t>(visible) << i;
    }
    return seen;
  }

 protected:
  __device__ __forceinline__ void mask(const PrefillSegment& s, int32_t tile, Scores& c) const {
    const bool packed = p_.draft_mask == DraftMask::kPacked;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const RowKeys keys = row_keys(s, row_of(m, h));
        // Of the interval, places in the tile that a thread's first key may have.
        const int32_t first = tile * kKeys + lane_ % 4 * 2;
        const int32_t begin = keys.begin - first, end = keys.end - first;
        const uint32_t seen = packed ? packed_keys(s, tile, keys) : ~0u;
#pragma unroll
        for (int i = 0; i < 2 * kKeyTiles; ++i) {
          const int32_t place = 8 * (i / 2) + i % 2;
          if (place < begin || place >= end || (seen >> i & 1u) == 0) c[m][i / 2][2 * h + i % 2] = -INFINITY;
        }
      }
    }
  }

  /// Scores become weights. The reference of a row moves only when one of its own scores has outgrown it, so that a
  /// row's result does not depend on its neighbours.
  __device__ __forceinline__ void softmax(Scores& c, const Factors& factors) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      float top[2];
      if (has_outgrown(m, c, factors, top)) {
        float shrink[2];
        move_reference(m, top, shrink);
        shrink_values(m, shrink);
      }
      weigh(m, c, factors);
    }
  }

  /// Whether a score of the warp's rows has outgrown its row's reference; the largest of each.
  __device__ __forceinline__ bool has_outgrown(int m, const Scores& c, const Factors& factors, float (&top)[2]) const {
    bool outgrown = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] = fmaxf(c[m][0][2 * h], c[m][0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < kKeyTiles; ++n) top[h] = fmaxf(top[h], fmaxf(c[m][n][2 * h], c[m][n][2 * h + 1]));
      top[h] *= factors[m][h];
      outgrown |= top[h] > limit_[m][h] + kSlack;
    }
    return __any_sync(0xffffffffu, outgrown) != 0;
  }
  /// Sums follow at once, values by what they must shrink.
  __device__ __forceinline__ void move_reference(int m, const float (&top)[2], float (&shrink)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float row_top = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
      row_top = fmaxf(row_top, __shfl_xor_sync(0xffffffffu, row_top, 2));
      const float old = limit_[m][h];
      const float moved = row_top > old + kSlack ? row_top : old;
      shrink[h] = exp2_approx(old - moved);
      limit_[m][h] = moved;
      sum_[m][h] *= shrink[h];
    }
  }
  __device__ __forceinline__ void shrink_values(int m, const float (&shrink)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kValueTiles; ++i) {
        acc_[m][i][2 * h] *= shrink[h];
        acc_[m][i][2 * h + 1] *= shrink[h];
      }
    }
  }
  __device__ __forceinline__ void weigh(int m, Scores& c, const Factors& factors) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        c[m][n][i] = exp2_approx(fmaf(c[m][n][i], factors[m][i / 2], -limit_[m][i / 2]));
        sum_[m][i / 2] += c[m][n][i];
      }
    }
  }
};

}  // namespace kvant::attn::cuda
