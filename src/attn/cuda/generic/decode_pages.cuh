#pragma once

// From page-table entries to tiles in shared memory.

#include <cstdint>
#include <type_traits>

#include "attn/cuda/generic/decode_queries.cuh"

namespace kvant::attn::cuda {

/// Looks pages up and copies tiles to the stages of a warp.
template <class Traits>
class DecodePages : protected DecodeQueries<Traits> {
 protected:
  using Base = DecodeQueries<Traits>;
  using KCodec = typename Traits::KCodec;
  using VCodec = typename Traits::VCodec;
  using KRows = typename Traits::KRows;
  using VRows = typename Traits::VRows;
  using Base::Base;
  using Base::lane_;
  using Base::p_;

  /// Table entries of a tile's two halves (8 tokens each; the same page unless pages hold 8 tokens).
  struct TilePages {
    int32_t low, high;
  };

  /// One lane reads one of the next 32 entries; the warp shares them by shuffles.
  __device__ __forceinline__ TilePages tile_pages(const detail::Segment& s, int32_t tile) {
    const bool halves = p_.page_shift == 3;
    const int32_t page = halves ? 2 * tile : tile >> (p_.page_shift - 4);
    int32_t index = page - batch_first_;
    if (static_cast<uint32_t>(index) >= 31) {
      batch_first_ = page;
      index = 0;
      const int32_t mine = page + lane_;
      const int32_t last_page = (s.kv_len - 1) >> p_.page_shift;
      batch_entry_ = mine >= s.first_page && mine <= last_page
                         ? __ldg(&p_.page_table[s.request * p_.page_table_stride + mine])
                         : kNoPage;
    }
    TilePages pages;
    pages.low = pages.high = __shfl_sync(0xffffffffu, batch_entry_, index);
    if (halves) {
      pages.high = __shfl_sync(0xffffffffu, batch_entry_, index + 1);
      // A half outside the window or past the length is masked; it may hold anything that is not a fault to read.
      if (pages.high < 0) pages.high = pages.low;
      if (pages.low < 0) pages.low = pages.high;
    }
    return pages;
  }

  /// Index of a tile among those of its page; 0 for pages of 8 or 16 tokens.
  __device__ __forceinline__ int32_t tile_in_page(int32_t tile) const {
    return tile & (((1 << p_.page_shift) - 1) >> 4);
  }

  /// Where this lane copies from in a page and to in a stage. Constant over a segment, and opaque to the compiler,
  /// which would otherwise compute them again for every tile.
  struct LaneCopies {
    uint32_t k, v, scale;           // in the page
    uint32_t k_to, v_to, scale_to;  // in the stage
  };

  __device__ __forceinline__ LaneCopies lane_copies(int32_t head) const {
    const PoolParams& pool = p_.base;
    const int k_row = lane_ / KRows::kChunks, k_chunk = lane_ % KRows::kChunks;
    const int v_row = lane_ / VRows::kChunks, v_chunk = lane_ % VRows::kChunks;
    LaneCopies c;
    c.k = pool.k.data + pool.k.data_head * head + pool.k.data_token * (k_row % 8) + 16 * k_chunk;
    c.v = pool.v.data + pool.v.data_head * head + pool.v.data_token * (v_row % 8) + 16 * v_chunk;
    c.k_to = KRows::offset(k_row, k_chunk);
    c.v_to = VRows::offset(v_row, v_chunk);
    // Lanes from 0 on copy K's scales, the next ones V's.
    const bool of_k = lane_ < Traits::kKScaleBytes / 16;
    const int32_t piece = 16 * (of_k ? lane_ : lane_ - Traits::kKScaleBytes / 16);
    c.scale = piece + (of_k ? pool.k.scale + pool.k.scale_head * head : pool.v.scale + pool.v.scale_head * head);
    c.scale_to = piece + (of_k ? Traits::kKScales : Traits::kVScales);
    c.k = opaque(c.k), c.v = opaque(c.v), c.scale = opaque(c.scale);
    c.k_to = opaque(c.k_to), c.scale_to = opaque(c.scale_to);
    if constexpr (std::is_same_v<KRows, VRows>)
      c.v_to = c.k_to;
    else
      c.v_to = opaque(c.v_to);
    return c;
  }

  /// Copies one plane's rows of a tile: a warp moves 512 bytes at once.
  template <class Rows>
  __device__ __forceinline__ static void copy_rows(uint32_t stage, uint32_t lane_to, const uint8_t* low,
                                                   const uint8_t* high, uint32_t token_stride) {
    constexpr int kRound = 32 / Rows::kChunks;  // rows at once
    if constexpr (kRound == 16) {
      copy_async_16(stage + lane_to, threadIdx.x % 32 / Rows::kChunks < 8 ? low : high);
      return;
    }
#pragma unroll
    for (int i = 0; i < 16; i += kRound) {
      copy_async_16(stage + (lane_to ^ Rows::round_offset(i)) + (i / 8) * (Rows::kBytes / 2),
                    (i < 8 ? low : high) + (i % 8) * token_stride);
    }
  }

  /// Starts the copies of a tile to a stage of this warp.
  __device__ __forceinline__ void copy_tile(const LaneCopies& c, uint32_t stage, int32_t tile, TilePages pages) const {
    const PoolParams& pool = p_.base;
    const uint8_t* low = page_of(pool, pages.low);
    const uint8_t* high = page_of(pool, pages.high);
    const uint32_t part = tile_in_page(tile);
    const uint32_t k = part * 16 * pool.k.data_token, v = part * 16 * pool.v.data_token;
    const uint32_t half = p_.page_shift == 3 ? 0 : 8;
    copy_rows<KRows>(stage, c.k_to, low + (c.k + k), high + (c.k + k + half * pool.k.data_token), pool.k.data_token);
    copy_rows<VRows>(stage + Traits::kVRows, c.v_to, low + (c.v + v), high + (c.v + v + half * pool.v.data_token),
                     pool.v.data_token);
    if constexpr (KCodec::kScales || VCodec::kScales) {
      const bool of_k = lane_ < Traits::kKScaleBytes / 16;
      const uint32_t tile_stride = of_k ? pool.k.scale_tile : pool.v.scale_tile;
      if (lane_ < (Traits::kKScaleBytes + Traits::kVScaleBytes) / 16)
        copy_async_16(stage + c.scale_to, low + (c.scale + part * tile_stride));
    }
  }
  __device__ __forceinline__ static const uint8_t* page_of(const PoolParams& pool, int32_t entry) {
    return pool.pages + static_cast<uint64_t>(static_cast<uint32_t>(entry & (kExactPageBit - 1))) * pool.page_stride;
  }

  int32_t batch_first_ = -64;  ///< First of the 31 pages whose entries the warp holds.
  int32_t batch_entry_ = 0;
};

}  // namespace kvant::attn::cuda
