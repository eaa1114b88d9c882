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
  using Base::confirm_lengths;
  using Base::lane_;
  using Base::lane_lengths;
  using Base::p_;
  static constexpr int kRoundTiles = Traits::kRoundTiles;

  /// A round is cut into octets of eight tokens, the smallest page. A lane copies from one octet, so from one page.
  static constexpr int kOctetLanes = 16 / kRoundTiles;

  /// Table entry of the page that this lane copies from in the round that starts with `tile`. One lane reads one of
  /// the next 32 entries; the warp shares them by shuffles. Tiles ascend until batch_first_ is reset.
  __device__ __forceinline__ int32_t lane_entry(const detail::Segment& s, int32_t tile) {
    if constexpr (Traits::kTilePages) {
      if (tile + kRoundTiles - batch_first_ > 32) load_entries(s, tile);
      return __shfl_sync(0xffffffffu, batch_entry_, tile + lane_ / (2 * kOctetLanes) - batch_first_);
    } else {
      const int32_t last_index = ((16 * (tile + kRoundTiles) - 1) >> p_.page_shift) - batch_first_;
      if (last_index >= 32) load_entries(s, tile);
      const int32_t token = 16 * tile + 8 * (lane_ / kOctetLanes);
      return __shfl_sync(0xffffffffu, batch_entry_, (token >> p_.page_shift) - batch_first_);
    }
  }

  /// Asks for the entries of 32 pages from `tile` on.
  __device__ __forceinline__ void load_entries(const detail::Segment& s, int32_t tile) {
    batch_first_ = Traits::kTilePages ? tile : (16 * tile) >> p_.page_shift;
    batch_entry_ = __ldg(batch_entry(s));
  }
  /// Where this lane's entry of the batch is.
  __device__ __forceinline__ const int32_t* batch_entry(const detail::Segment& s) const {
    const int32_t last_page = (s.kv_len - 1) >> p_.page_shift;
    // Entries outside are poison. What a neighbour's page gives in their place is masked.
    const int32_t mine = min(max(batch_first_ + lane_, s.first_page), last_page);
    return &p_.page_table[s.request * p_.page_table_stride + mine];
  }

  /// Guesses the entries from `tile` on; false where one names no page.
  __device__ __forceinline__ bool guess_entries(const detail::Segment& s, int32_t tile) {
    batch_first_ = (16 * tile) >> p_.page_shift;
    batch_entry_ = detail::load_past_l1(batch_entry(s));
    const bool exact = Traits::kExact && is_exact_page(batch_entry_);
    const auto page = static_cast<uint32_t>(exact ? page_id(batch_entry_) : batch_entry_);
    return __all_sync(0xffffffffu, page < (exact ? p_.exact.num_pages : p_.base.num_pages));
  }
  /// What confirms a guess.
  struct Facts {
    typename Base::Lengths lengths;
    int32_t entry;
  };
  __device__ __forceinline__ Facts fetch_facts(const detail::Segment& s) const {
    return {lane_lengths(false), __ldg(batch_entry(s))};
  }
  /// Whether the lengths and entries that were guessed are the ones that the kernels before this one have left.
  __device__ __forceinline__ bool confirm(const Facts& facts) {
    return __all_sync(0xffffffffu, facts.entry == batch_entry_) && confirm_lengths(facts.lengths);
  }

  /// Brings the first kTilesAhead tiles from `tile` on, of guessed base pages, to L2: a lane has some rows of K or of
  /// V.
  __device__ __forceinline__ void prefetch_tiles(const detail::Segment& s, int32_t tile, int32_t last) const {
    constexpr int kRowsALane = kTilesAhead;  // So that 32 lanes have all rows of both planes.
    const PoolParams& pool = p_.base;
    const int32_t first_row = lane_ % 16 * kRowsALane;
    const PlaneStrides& plane = lane_ < 16 ? pool.k : pool.v;
    const int32_t token = 16 * tile + first_row;
    const int32_t entry = __shfl_sync(0xffffffffu, batch_entry_, (token >> p_.page_shift) - batch_first_);
    if (tile + first_row / 16 >= last || (Traits::kExact && is_exact_page(entry))) return;
    const uint8_t* page = pool.pages + static_cast<uint64_t>(static_cast<uint32_t>(entry)) * pool.page_stride;
    const uint32_t in_page = token & ((1u << p_.page_shift) - 1);
    const uint8_t* from = page + (plane.data + plane.data_head * s.head + in_page * plane.data_token);
#pragma unroll
    for (int row = 0; row < kRowsALane; ++row)
#pragma unroll
      for (int byte = 0; byte < KRows::kRowBytes; byte += 128) prefetch_l2(from + row * plane.data_token + byte);
    if (KCodec::kScales && first_row % 16 == 0)
      prefetch_l2(page + (plane.scale + plane.scale_head * s.head + in_page / 16 * plane.scale_tile));
  }
  /// A power of two, and few enough tiles that those of all warps of a grid stay in L2.
  static constexpr int kTilesAhead = Traits::kTileBytes >= 8192 ? 1 : Traits::kTileBytes >= 4096 ? 2 : 4;

  /// Where this lane copies from in page 0 and to in a stage. Constant over a segment, and opaque to the compiler,
  /// which would otherwise compute them again for every tile.
  struct LaneCopies {
    const uint8_t *k, *v, *scale;
    uint32_t k_to, v_to, scale_to;
  };

  __device__ __forceinline__ LaneCopies lane_copies(int32_t head) const {
    const PoolParams& pool = p_.base;
    const int octet = lane_ / kOctetLanes, lane = lane_ % kOctetLanes;
    const uint32_t tile = octet / 2 * Traits::kTileBytes;
    LaneCopies c;
    c.k = opaque(first_chunk<KRows>(pool.pages, pool.k, head));
    c.v = opaque(first_chunk<VRows>(pool.pages, pool.v, head));
    c.k_to = opaque(tile + first_chunk_to<KRows>());
    c.v_to = std::is_same_v<KRows, VRows> ? c.k_to : opaque(tile + first_chunk_to<VRows>());
    // Of a tile's two octets the first copies K's scales and the second V's.
    const PlaneStrides& plane = octet % 2 == 0 ? pool.k : pool.v;
    c.scale = opaque(pool.pages + (16 * lane + plane.scale + plane.scale_head * head));
    c.scale_to = opaque(tile + 16 * lane + (octet % 2 == 0 ? Traits::kKScales : Traits::kVScales));
    return c;
  }

  /// Starts the copies of a round to a stage of this warp.
  __device__ __forceinline__ void copy_round(const LaneCopies& c, uint32_t stage, int32_t tile, int32_t entry) const {
    if constexpr (Traits::kTilePages) return copy_tile_pages(c, stage, entry);
    const PoolParams& pool = p_.base;
    const uint64_t page = static_cast<uint64_t>(static_cast<uint32_t>(entry)) * pool.page_stride;
    const uint32_t in_page = (16 * tile + 8 * (lane_ / kOctetLanes)) & ((1u << p_.page_shift) - 1);
    copy_rows<KRows>(stage + c.k_to, c.k + page, in_page, pool.k.data_token);
    if constexpr (!Traits::kHalves)
      copy_rows<VRows>(stage + c.v_to + Traits::kVRows, c.v + page, in_page, pool.v.data_token);
    if constexpr (KCodec::kScales || VCodec::kScales) {
      const bool of_k = lane_ / kOctetLanes % 2 == 0;
      const uint32_t tile_stride = of_k ? pool.k.scale_tile : pool.v.scale_tile;
      const int32_t chunks = (of_k ? Traits::kKScaleBytes : Traits::kVScaleBytes) / 16;
      const uint8_t* from = c.scale + page + static_cast<uint64_t>(in_page / 16) * tile_stride;
#pragma unroll
      for (int i = 0; i < Traits::kHeadDim / 16; i += kOctetLanes)
        if (lane_ % kOctetLanes + i < chunks) copy_async_16(stage + c.scale_to + 16 * i, from + 16 * i);
    }
  }

  /// The same for values where stages hold halves.
  __device__ __forceinline__ void copy_values(const LaneCopies& c, uint32_t stage, int32_t tile, int32_t entry) const {
    const PoolParams& pool = p_.base;
    const uint64_t page = static_cast<uint64_t>(static_cast<uint32_t>(entry)) * pool.page_stride;
    const uint32_t in_page = (16 * tile + 8 * (lane_ / kOctetLanes)) & ((1u << p_.page_shift) - 1);
    copy_rows<VRows>(stage + c.v_to, c.v + page, in_page, pool.v.data_token);
  }

  /// The lanes that copy from an exact page bring its octet to L2 instead, for the loop over exact pages.
  __device__ __forceinline__ void prefetch_exact(const detail::Segment& s, int32_t tile, int32_t entry) const {
    const uint8_t* page = page_of(p_.exact, entry);
    const uint32_t in_page = (16 * tile + 8 * (lane_ / kOctetLanes)) & ((1u << p_.page_shift) - 1);
    for (int i = lane_ % kOctetLanes; i < 8 * kExactLines; i += kOctetLanes) {
      const uint32_t token = in_page + i / kExactLines, byte = i % kExactLines * 128;
      prefetch_l2(page + (p_.exact.k.data + p_.exact.k.data_head * s.head + p_.exact.k.data_token * token + byte));
      prefetch_l2(page + (p_.exact.v.data + p_.exact.v.data_head * s.head + p_.exact.v.data_token * token + byte));
    }
  }
  static constexpr int kExactLines = Traits::kHeadDim * 2 / 128;  ///< Of 128 bytes, per row.

  __device__ __forceinline__ static const uint8_t* page_of(const PoolParams& pool, int32_t entry) {
    return pool.pages + static_cast<uint64_t>(static_cast<uint32_t>(entry & (kExactPageBit - 1))) * pool.page_stride;
  }

  static constexpr int32_t kNoBatch = -64;
  int32_t batch_first_ = kNoBatch;  ///< First of the 32 pages whose entries the warp holds.
  int32_t batch_entry_ = 0;

 private:
  template <class Rows>
  __device__ __forceinline__ const uint8_t* first_chunk(const uint8_t* pages, const PlaneStrides& plane,
                                                        int32_t head) const {
    const int lane = lane_ % kOctetLanes;
    const int first_row = Traits::kTilePages ? 8 * (lane_ / kOctetLanes % 2) : 0;
    return pages + (plane.data + plane.data_head * head + plane.data_token * (first_row + lane / Rows::kChunks) +
                    16 * (lane % Rows::kChunks));
  }
  template <class Rows>
  __device__ __forceinline__ uint32_t first_chunk_to() const {
    const int lane = lane_ % kOctetLanes;
    return Rows::offset(8 * (lane_ / kOctetLanes % 2) + lane / Rows::kChunks, lane % Rows::kChunks);
  }

  /// copy_round from pages of a tile each: a lane's addresses of a plane differ by constants.
  __device__ __forceinline__ void copy_tile_pages(const LaneCopies& c, uint32_t stage, int32_t entry) const {
    static_assert(Traits::kKScaleBytes == 16 * kOctetLanes && Traits::kVScaleBytes == 16 * kOctetLanes);
    copy_rows<KRows>(stage + c.k_to, address_in(entry, c.k), 0, KRows::kRowBytes);
    copy_rows<VRows>(stage + c.v_to, address_in(entry, c.v), 0, VRows::kRowBytes, Traits::kVRows);
    copy_async_16(stage + c.scale_to, address_in(entry, c.scale));
  }
  /// What has the place of `in_first`, an address in page 0, in an entry's page; one instruction.
  __device__ __forceinline__ const uint8_t* address_in(int32_t entry, const uint8_t* in_first) const {
    uint64_t address;
    asm("mad.wide.u32 %0, %1, %2, %3;"
        : "=l"(address)
        : "r"(entry), "r"(p_.base.page_stride), "l"(reinterpret_cast<uint64_t>(in_first)));
    return reinterpret_cast<const uint8_t*>(address);
  }

  /// Copies this lane's chunks of one plane's octet; `to` is a multiple of 128 bytes from a tile's first row, but for
  /// the lane's own place. With `to_offset`, a constant, several planes share `to`.
  template <class Rows>
  __device__ __forceinline__ static void copy_rows(uint32_t to, const uint8_t* from, uint32_t in_page,
                                                   uint32_t token_stride, uint32_t to_offset = 0) {
    constexpr int kRows = kOctetLanes > Rows::kChunks ? kOctetLanes / Rows::kChunks : 1;  // at once
    from += static_cast<uint64_t>(in_page) * token_stride;
#pragma unroll
    for (int row = 0; row < 8; row += kRows)
#pragma unroll
      for (int chunk = 0; chunk < Rows::kChunks; chunk += kOctetLanes)
        copy_async_16((to ^ Rows::step_turn(row)) + to_offset + row * Rows::kRowBytes + 16 * chunk,
                      from + static_cast<uint64_t>(row) * token_stride + 16 * chunk);
  }
};

}  // namespace kvant::attn::cuda
