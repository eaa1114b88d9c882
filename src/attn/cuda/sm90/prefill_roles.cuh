#pragma once

// A block whose warpgroups have roles: the last brings tiles, the others attend to 64 query rows each.

#include <cstdint>

#include "attn/cuda/generic/prefill_finish.cuh"
#include "attn/cuda/sm90/phase_barrier.cuh"

namespace kvant::attn::cuda {

/// Tiles of any kind, out of line: most are plain.
template <class Traits>
class PrefillAnyTile : private PrefillPages<Traits> {
 public:
  using PrefillPages<Traits>::PrefillPages;
  using PrefillPages<Traits>::finish_copies;
  using PrefillPages<Traits>::start_copies;
};
template <class Traits>
__device__ __noinline__ void start_tile_copies(const PrefillParams& params, typename Traits::SharedStorage& shared,
                                               uint32_t segment, int32_t tile, int32_t entry, int stage, int raw) {
  PrefillAnyTile<Traits>(params, shared).start_copies(shared.segments[segment], tile, entry, stage, raw);
}
template <class Traits>
__device__ __noinline__ void finish_tile_copies(const PrefillParams& params, typename Traits::SharedStorage& shared,
                                                uint32_t segment, int32_t tile, int32_t entry, int stage, int raw) {
  PrefillAnyTile<Traits>(params, shared).finish_copies(shared.segments[segment], tile, entry, stage, raw);
}

/// One block's work. Tiles go round through a ring of stages, items through a ring of segments; each side says warp by
/// warp what it has filled and what it has read, so that nobody waits for more than he needs. The bringers run ahead,
/// into the next item too: its first tiles are there when its query rows are.
template <class Traits>
class PrefillRoles : private PrefillFinish<Traits> {
 public:
  using Base = PrefillFinish<Traits>;
  using Products = typename Traits::Products;
  using Base::Base;
  using typename Base::Share;

  __device__ void run() {
    const Share share = this->share_of_block();
    const auto thread = static_cast<int>(Traits::thread());
    if (thread < kStages) {
      start_phases(filled(thread), kBringWarps);
      start_phases(emptied(thread), kWorkWarps);
    }
    if (thread < kSegments) {
      start_phases(found(thread), 1);
      start_phases(done(thread), kWorkWarps);
    }
    __syncthreads();
    if (warp_ >= kWorkWarps)
      bring(share);
    else
      work(share);
  }

 private:
  using Base::acc_;
  using Base::first_row;
  using Base::lane_;
  using Base::p_;
  using Base::shared_;
  using Base::warp_;
  static constexpr bool kQuantised = Base::kQuantised;
  static constexpr int kStages = Traits::kStages, kRawStages = Traits::kRawStages, kSegments = Traits::kSegments;
  static constexpr int kWorkWarps = Traits::kWorkers / 32, kBringWarps = Traits::kBringers / 32;
  static_assert(kRawStages == 2 && kStages >= 4 && kSegments >= 4, "copies run two tiles ahead, of two items even");

  __device__ __forceinline__ uint32_t phases(uint32_t i) const { return shared_address(shared_.phases) + 8 * i; }
  /// Of the stage of the n-th tile.
  __device__ __forceinline__ uint32_t filled(uint32_t n) const { return phases(n % kStages); }
  __device__ __forceinline__ uint32_t emptied(uint32_t n) const { return phases(kStages + n % kStages); }
  /// Of the n-th segment.
  __device__ __forceinline__ uint32_t found(uint32_t n) const { return phases(2 * kStages + n % kSegments); }
  __device__ __forceinline__ uint32_t done(uint32_t n) const { return phases(2 * kStages + kSegments + n % kSegments); }
  __device__ __forceinline__ void wait_until_emptied(uint32_t n) const {
    wait_for_phase(emptied(n), n / kStages + 1 & 1);
  }

  // ---- Bringers -----------------------------------------------------------------------------------------------------

  /// A place in the stream of tiles.
  struct Cursor {
    uint32_t segment = ~0u;  ///< Counted from the first.
    int32_t tile = 0, end = 0;
    uint32_t tiles = 0;  ///< So far.
  };
  __device__ __forceinline__ const PrefillSegment& segment_of(uint32_t n) const {
    return shared_.segments[n % kSegments];
  }

  /// Finds the n-th segment, by all bringers. Whether there is one.
  __device__ __forceinline__ bool find_next(const Share& share, uint32_t n, int32_t& position) const {
    if (warp_ == kWorkWarps) {
      wait_for_phase(done(n), n / kSegments + 1 & 1);
      __syncwarp();
      PrefillSegment& segment = shared_.segments[n % kSegments];
      const bool whole = share.tiles == 0;
      if (whole && n > 0) {
        if (lane_ == 0) position = static_cast<int32_t>(gridDim.x + atomicAdd(p_.counters + gridDim.x, 1u));
        position = __shfl_sync(0xffffffffu, position, 0);
      }
      if (position < share.end) {
        find_prefill_segment<Traits>(p_, shared_, segment, position, share.end, whole);
        __syncwarp();
        position += segment.tile_end - segment.tile_begin;
      } else if (lane_ == 0) {
        segment.request = -1;
      }
      __syncwarp();
      if (lane_ == 0) arrive_at_phase(found(n));
    }
    sync_named<Traits::kBringers>(kBringBarrier);
    return segment_of(n).request >= 0;
  }

  __device__ __forceinline__ void bring(const Share& share) const {
    if constexpr (!kQuantised) {
      bring_tiles<UnitFormat::k16Bits>(share);
    } else {
      const PagePlane &k = p_.base.plane[0], &v = p_.base.plane[1];
      const bool alike = k.format == v.format && k.code_order == v.code_order;
      if (alike && k.format == KvFormat::kE4m3)
        bring_tiles<UnitFormat::kE4m3>(share);
      else if (alike && k.format == KvFormat::kNvfp4 && k.code_order == CodeOrder::kPacked)
        bring_tiles<UnitFormat::kNvfp4Packed>(share);
      else if (alike && k.format == KvFormat::kF16 && !p_.exact_pages)
        bring_tiles<UnitFormat::k16Bits>(share);
      else
        bring_tiles<UnitFormat::kAny>(share);
    }
    if (share.tiles == 0 && Traits::thread() == Traits::kFirstBringer) this->leave();
  }

  /// Of K and V in one format that is known, tiles that are whole and plain go the short way.
  template <UnitFormat kFormat>
  __device__ __forceinline__ void bring_tiles(const Share& share) const {
    constexpr bool kCopied = kFormat == UnitFormat::k16Bits;
    constexpr bool kShortWay = !kCopied && kFormat != UnitFormat::kAny;
    // Copies that go straight to a stage need it a tile or two before the others.
    const bool straight = kCopied || p_.exact_pages || kFormat == UnitFormat::kAny;
    Cursor copied, brought;
    typename Base::PlainTiles plain;         // of copied's segment
    int32_t plain_begin = 0, plain_end = 0;  // of brought's
    uint32_t k_multiplier = 0, v_multiplier = 0;
    int32_t key_begin = 0, key_end = 0;
    const int32_t* entries = nullptr;
    const auto entry_of = [&](int32_t tile) {
      const int32_t key = tile * Traits::kKeys + Base::kGroupKeys * (lane_ % (Traits::kKeys / Base::kGroupKeys));
      if (tile >= copied.end || key >= key_end || key + Base::kGroupKeys <= key_begin) return kNoPage;
      return __ldg(entries + (key >> p_.page_shift));
    };
    int32_t position = share.begin;
    int32_t entry = kNoPage, next_entry = kNoPage, entry_to_copy = kNoPage;  // of brought's tile, the next, copied's
    for (bool more = true;;) {
      if (!more || copied.tiles - brought.tiles == 2) {
        if (brought.tiles == copied.tiles) break;
        if (brought.tile == brought.end) {
          const PrefillSegment& s = segment_of(++brought.segment);
          brought.tile = s.tile_begin, brought.end = s.tile_end;
          if constexpr (kShortWay) {
            const auto tiles = this->template plain_tiles<kFormat>(s);
            plain_begin = tiles.begin, plain_end = tiles.end;
            k_multiplier = s.k.multiplier, v_multiplier = s.v.multiplier;
          }
        }
        if (!straight) wait_until_emptied(brought.tiles);
        const auto stage = static_cast<int>(brought.tiles % kStages),
                   raw = static_cast<int>(brought.tiles % kRawStages);
        if constexpr (kCopied) {
          wait_copies<kRawStages - 1>();
        } else {
          bool is_plain = false;
          if constexpr (kShortWay) is_plain = Base::is_plain(plain_begin, plain_end, brought.tile, entry);
          if (is_plain) {
            if constexpr (kShortWay)
              this->template finish_plain_copies<kFormat>(k_multiplier, v_multiplier, stage, raw);
          } else {
            finish_tile_copies<Traits>(p_, shared_, brought.segment % kSegments, brought.tile, entry, stage, raw);
          }
        }
        __syncwarp();
        if (lane_ == 0) arrive_at_phase(filled(brought.tiles));
        ++brought.tile, ++brought.tiles;
        entry = next_entry;
      }
      if (more && copied.tile == copied.end) {
        ++copied.segment;
        more = find_next(share, copied.segment, position);
        if (more) {
          const PrefillSegment& s = segment_of(copied.segment);
          copied.tile = s.tile_begin, copied.end = s.tile_end;
          key_begin = s.key_begin, key_end = s.key_end, entries = s.entries;
          entry_to_copy = entry_of(copied.tile);
          if constexpr (kShortWay) plain = this->template plain_tiles<kFormat>(s);
        }
      }
      if (!more) {
        commit_copies();
        continue;
      }
      const auto stage = static_cast<int>(copied.tiles % kStages), raw = static_cast<int>(copied.tiles % kRawStages);
      if (straight) wait_until_emptied(copied.tiles);
      if constexpr (kCopied) {
        this->start_row_copies(segment_of(copied.segment), copied.tile, entry_to_copy, stage);
      } else {
        const PrefillSegment& s = segment_of(copied.segment);
        if (copied.tile < s.tile_begin + kRawStages) this->note_scales(s, raw);
        bool is_plain = false;
        if constexpr (kShortWay) is_plain = Base::is_plain(plain.begin, plain.end, copied.tile, entry_to_copy);
        if (is_plain) {
          if constexpr (kShortWay) this->template start_plain_copies<kFormat>(plain, copied.tile, entry_to_copy, raw);
        } else {
          start_tile_copies<Traits>(p_, shared_, copied.segment % kSegments, copied.tile, entry_to_copy, stage, raw);
        }
      }
      (copied.tiles == brought.tiles ? entry : next_entry) = entry_to_copy;
      ++copied.tile, ++copied.tiles;
      entry_to_copy = entry_of(copied.tile);
    }
  }
  static constexpr int kBringBarrier = 6;

  // ---- Workers ------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void work(const Share& share) {
    uint32_t tiles = 0;
    for (uint32_t n = 0;; ++n) {
      wait_for_phase(found(n), n / kSegments & 1);
      const PrefillSegment& s = segment_of(n);
      if (s.request < 0) return;
      Products::release_queries();  // and the last item's rows on their way out
      this->load_queries(s);
      Products::publish_operands();
      Products::release_queries();
      this->start_rows();
      typename Base::Factors factors;
      this->find_factors(s, factors);
      const bool has_rows = Products::first_row_together(first_row()) < s.num_rows;
      for (int32_t tile = s.tile_begin; tile < s.tile_end; ++tile, ++tiles) {
        wait_for_phase(filled(tiles), tiles / kStages & 1);
        // Here rather than where the tile was written: there the fence would wait for the copies that are under way.
        Products::publish_operands();
        __syncwarp();
        if (has_rows) attend_to_tile(s, tile, static_cast<int>(tiles % kStages), factors);
        __syncwarp();
        if (lane_ == 0) arrive_at_phase(emptied(tiles));
      }
      this->finish(s, s.position, share.begin, share.tiles);
      __syncwarp();
      if (lane_ == 0) arrive_at_phase(done(n));
    }
  }

  __device__ __forceinline__ void attend_to_tile(const PrefillSegment& s, int32_t tile, int stage,
                                                 const typename Base::Factors& factors) {
    typename Base::Scores c;
    Products::score(shared_address(shared_.q), this->operand_of(0, stage), first_row(), c);
    if (p_.soft_cap > 0.0f) this->cap(s, c);
    if (this->seen_in_part(s, tile)) this->mask(s, tile, c);
    this->softmax(c, factors);
    Products::accumulate(this->operand_of(1, stage), c, acc_);
  }
};

}  // namespace kvant::attn::cuda
