#pragma once

// A block whose warpgroups have roles: the last one or two bring tiles, the others attend to 64 query rows each.
// Bringers need fewer registers: workers have more, and keep products of two tiles under way. Items may be of any kind.
// What is called out of line must do with the bringers' registers, or the compiler leaves all roles the same.

#include <cstdint>
#include <type_traits>

#include "attn/cuda/generic/prefill_finish.cuh"
#include "attn/cuda/sm90/phase_barrier.cuh"
#include "attn/cuda/sm90/warp_tiles.cuh"
#include "attn/cuda/sm90/warpgroup_mma.cuh"
#include "core/warpgroup_registers.cuh"

namespace kvant::attn::cuda {

/// Tiles of any kind, out of line: most are of one format, whole and plain.
template <class Traits>
class PrefillAnyTile : private PrefillPages<Traits> {
 public:
  using PrefillPages<Traits>::PrefillPages;
  using PrefillPages<Traits>::finish_copies;
  using PrefillPages<Traits>::note_scales;
  using PrefillPages<Traits>::start_copies;
};
template <class Traits>
__device__ __noinline__ void start_tile_copies(const PrefillParams& params, typename Traits::SharedStorage& shared,
                                               uint32_t segment, int32_t tile, int32_t entry, int stage, int raw,
                                               bool is_first) {
  PrefillAnyTile<Traits> any(params, shared);
  if (is_first) any.note_scales(shared.segments[segment], raw);
  any.start_copies(shared.segments[segment], tile, entry, stage, raw);
}
template <class Traits>
__device__ __noinline__ void finish_tile_copies(const PrefillParams& params, typename Traits::SharedStorage& shared,
                                                uint32_t segment, int32_t tile, int32_t entry, int stage, int raw) {
  PrefillAnyTile<Traits>(params, shared).finish_copies(shared.segments[segment], tile, entry, stage, raw);
}

/// Where no tile has a format that is known.
struct NoWarpTiles {
  struct Item {};
};

/// Tiles go round through a ring of stages, items through a ring of segments; each side says warp by warp what it has
/// filled and what it has read, so that nobody waits for more than he needs. The bringers run ahead, into the next item
/// too: its first tiles are there when its query rows are.
///
/// One block's work. Items gives it, `share` being what the block takes of it:
///   int32_t first_position(share)
///   void find_item(share, n, position, segment)   by a warp: the n-th; segment.request = -1 where there is none
///   void finish_item(share, segment)              by the workers, when they have attended to it
///   void leave_items(share)                       by the bringers, who will look for none any more
template <class Traits, class Items>
class PipelinedRoles : protected PrefillFinish<Traits> {
 public:
  using Base = PrefillFinish<Traits>;
  using Products = typename Traits::Products;
  using Base::Base;

  template <class Share>
  __device__ __forceinline__ void run(const Share& share) {
    const auto thread = static_cast<int>(Traits::thread());
    if (thread < kStages) {
      start_phases(filled(thread), kBringWarps);
      start_phases(emptied(thread), kWorkWarps);
    }
    if (thread < kSegments) {
      start_phases(found(thread), 1);
      start_phases(done(thread), kWorkWarps);
    }
    if constexpr (kQuantised) {
      if (thread < kRawStages * kBringWarps) start_phases(shared_address(shared_.raw_phases) + 8 * thread, 1);
    }
    __syncthreads();
    if (warp_ >= kWorkWarps) {
      give_registers<Traits::kBringerRegisters>();
      bring(share);
    } else {
      take_registers<Traits::kWorkerRegisters>();
      work(share);
    }
  }

 protected:
  using Base::acc_;
  using Base::first_row;
  using Base::lane_;
  using Base::p_;
  using Base::shared_;
  using Base::warp_;
  static constexpr bool kQuantised = Base::kQuantised;

 private:
  __device__ __forceinline__ const Items& items() const { return static_cast<const Items&>(*this); }
  __device__ __forceinline__ Items& items() { return static_cast<Items&>(*this); }
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
  template <class Share>
  __device__ __forceinline__ bool find_next(const Share& share, uint32_t n, int32_t& position) const {
    if (warp_ == kWorkWarps) {
      wait_for_phase(done(n), n / kSegments + 1 & 1);
      __syncwarp();
      PrefillSegment& segment = shared_.segments[n % kSegments];
      items().find_item(share, n, position, segment);
      __syncwarp();
      if (lane_ == 0) arrive_at_phase(found(n));
    }
    sync_named<Traits::kBringers>(kBringBarrier);
    return segment_of(n).request >= 0;
  }

  template <class Share>
  __device__ __forceinline__ void bring(const Share& share) const {
    if constexpr (Traits::kUnits != UnitFormat::kAny) {
      bring_tiles<Traits::kUnits>(share);
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
    items().leave_items(share);
  }

  /// Of K and V in one format that is known, tiles that are whole and plain go the short way.
  template <UnitFormat kFormat, class Share>
  __device__ __forceinline__ void bring_tiles(const Share& share) const {
    constexpr bool kCopied = kFormat == UnitFormat::k16Bits;
    constexpr bool kShortWay = !kCopied && kFormat != UnitFormat::kAny;
    using ShortWay = typename ShortWayOf<kFormat, kShortWay>::Type;
    const ShortWay short_way = make_short_way<ShortWay>();
    typename ShortWay::Item item;           // of copied's segment
    uint32_t short_ways = 0, parities = 0;  // a bit a raw stage: its tile goes the short way; the phase of its copies
    // Copies that go straight to a stage need it a tile or two before the others.
    const bool straight = kCopied || p_.exact_pages || kFormat == UnitFormat::kAny;
    Cursor copied, brought;
    uint32_t k_multiplier = 0, v_multiplier = 0;  // of brought's segment
    int32_t key_begin = 0, key_end = 0;
    const int32_t* entries = nullptr;
    const auto entry_of = [&](int32_t tile) {
      const int32_t key = tile * Traits::kKeys + Base::kGroupKeys * (lane_ % (Traits::kKeys / Base::kGroupKeys));
      if (tile >= copied.end || key >= key_end || key + Base::kGroupKeys <= key_begin) return kNoPage;
      return __ldg(entries + (key >> p_.page_shift));
    };
    int32_t position = items().first_position(share);
    int32_t entry = kNoPage, next_entry = kNoPage, entry_to_copy = kNoPage;  // of brought's tile, the next, copied's
    for (bool more = true;;) {
      if (!more || copied.tiles - brought.tiles == 2) {
        if (brought.tiles == copied.tiles) break;
        if (brought.tile == brought.end) {
          const PrefillSegment& s = segment_of(++brought.segment);
          brought.tile = s.tile_begin, brought.end = s.tile_end;
          if constexpr (kShortWay) k_multiplier = s.k.multiplier, v_multiplier = s.v.multiplier;
        }
        const uint32_t stage = brought.tiles % kStages, raw = brought.tiles % kRawStages;
        if constexpr (kCopied) {
          wait_copies<kRawStages - 1>();
        } else {
          if (!straight) wait_until_emptied(brought.tiles);
          if (kShortWay && (short_ways >> raw & 1u) != 0) {
            if constexpr (kShortWay) {
              short_way.wait(raw, parities >> raw & 1u);
              parities ^= 1u << raw;
              short_way.expand(k_multiplier, v_multiplier, stage, raw);
            }
          } else {
            finish_tile_copies<Traits>(p_, shared_, brought.segment % kSegments, brought.tile, entry,
                                       static_cast<int>(stage), static_cast<int>(raw));
            // What the tile had in its raw stage may be written in bulk next.
            if constexpr (kShortWay) fence_shared_for_mma();
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
          if constexpr (kShortWay) item = short_way.item_of(s);
        }
      }
      if (!more) {
        commit_copies();
        continue;
      }
      const uint32_t stage = copied.tiles % kStages, raw = copied.tiles % kRawStages;
      if (straight) wait_until_emptied(copied.tiles);
      if constexpr (kCopied) {
        this->start_row_copies(segment_of(copied.segment), copied.tile, entry_to_copy, static_cast<int>(stage));
      } else {
        bool is_short = false;
        if constexpr (kShortWay) {
          is_short = ShortWay::takes(item, copied.tile, entry_to_copy);
          short_ways = (short_ways & ~(1u << raw)) | static_cast<uint32_t>(is_short) << raw;
          if (is_short) {
            short_way.copy(item, copied.tile, entry_to_copy, raw);
            commit_copies();
          }
        }
        if (!is_short) {
          // The short way leaves nothing of what is noted in a raw stage.
          const bool is_first = kShortWay || copied.tile < segment_of(copied.segment).tile_begin + kRawStages;
          start_tile_copies<Traits>(p_, shared_, copied.segment % kSegments, copied.tile, entry_to_copy,
                                    static_cast<int>(stage), static_cast<int>(raw), is_first);
        }
      }
      (copied.tiles == brought.tiles ? entry : next_entry) = entry_to_copy;
      ++copied.tile, ++copied.tiles;
      entry_to_copy = entry_of(copied.tile);
    }
  }
  template <UnitFormat kFormat, bool kShortWay>
  struct ShortWayOf {
    using Type = NoWarpTiles;
  };
  template <UnitFormat kFormat>
  struct ShortWayOf<kFormat, true> {
    using Type = WarpTiles<Traits, kFormat>;
  };
  template <class ShortWay>
  __device__ __forceinline__ ShortWay make_short_way() const {
    if constexpr (std::is_same_v<ShortWay, NoWarpTiles>)
      return {};
    else
      return ShortWay(p_, shared_, static_cast<uint32_t>(warp_ - kWorkWarps), static_cast<uint32_t>(lane_));
  }
  static constexpr int kBringBarrier = 6;

  // ---- Workers ------------------------------------------------------------------------------------------------------

  template <class Share>
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
      const int32_t count = s.tile_end - s.tile_begin;
      if (Products::first_row_together(first_row()) < s.num_rows)
        attend_to_tiles(s, tiles, count);
      else
        for (int32_t i = 0; i < count; ++i) pass_tile(tiles + i);
      tiles += count;
      items().finish_item(share, s);
      __syncwarp();
      if (lane_ == 0) arrive_at_phase(done(n));
    }
  }
  __device__ __forceinline__ void pass_tile(uint32_t n) const {
    wait_for_phase(filled(n), n / kStages & 1);
    leave_tile(n);
  }
  __device__ __forceinline__ void leave_tile(uint32_t n) const {
    __syncwarp();
    if (lane_ == 0) arrive_at_phase(emptied(n));
  }

  /// A tile's scores and the values of the one before are products under way at the same time; the softmax of the one
  /// runs beside the other.
  __device__ __forceinline__ void attend_to_tiles(const PrefillSegment& s, uint32_t first, int32_t count) {
    constexpr bool kPeeled = Traits::kPeeled;
    typename Base::Factors factors;
    this->find_factors(s, factors);
    typename Base::Scores c;
    typename Products::Weights weights = {};
    float shrink[2];
    const auto weigh_tile = [&](int32_t i) {
      see(s, s.tile_begin + i, c);
      float top[2];
      const bool outgrown = this->has_outgrown(0, c, factors, top);
      if (outgrown) this->move_reference(0, top, shrink);
      this->weigh(0, c, factors);
      return outgrown;
    };
    if constexpr (kPeeled) {
      start_scores(first, c);
      wait_warpgroup_mma(c[0]);
      weigh_tile(0);  // The values are zeros.
      Products::pack(c, weights);
    }
#pragma unroll 1
    for (int32_t i = kPeeled ? 1 : 0; i < count; ++i) {
      const uint32_t n = first + i;
      start_scores(n, c);
      // Unless peeled, of the first tile twice: what the first time gives is overwritten.
      Products::start_values(values_of(kPeeled || i > 0 ? n - 1 : n), weights, acc_, kPeeled || i > 1);
      wait_warpgroup_mma<1>(c[0]);
      const bool outgrown = weigh_tile(i);
      wait_warpgroup_mma(acc_[0]);
      if (kPeeled || i > 0) leave_tile(n - 1);
      if (outgrown) this->shrink_values(0, shrink);
      Products::pack(c, weights);
    }
    Products::start_values(values_of(first + count - 1), weights, acc_, kPeeled || count > 1);
    wait_warpgroup_mma(acc_[0]);
    leave_tile(first + count - 1);
  }
  __device__ __forceinline__ uint32_t values_of(uint32_t n) const {
    return this->operand_of(1, static_cast<int>(n % kStages));
  }
  __device__ __forceinline__ void wait_for_tile(uint32_t n) const {
    wait_for_phase(filled(n), n / kStages & 1);
    // Here rather than where the tile was written: there the fence would wait for the copies that are under way.
    Products::publish_operands();
    __syncwarp();
  }
  __device__ __forceinline__ void start_scores(uint32_t n, typename Base::Scores& c) const {
    wait_for_tile(n);
    Products::start_scores(shared_address(shared_.q), this->operand_of(0, static_cast<int>(n % kStages)), first_row(),
                           c);
  }
  /// From products to what rows see.
  __device__ __forceinline__ void see(const PrefillSegment& s, int32_t tile, typename Base::Scores& c) const {
    if (p_.soft_cap > 0.0f) this->cap(s, c);
    if (this->seen_in_part(s, tile)) this->mask(s, tile, c);
  }
};

/// Items of prefill_work.cuh, finished by prefill_finish.cuh.
template <class Traits>
class PipelinedPrefill : private PipelinedRoles<Traits, PipelinedPrefill<Traits>> {
 public:
  using Base = PipelinedRoles<Traits, PipelinedPrefill>;
  using Base::Base;
  using typename Base::Share;
  __device__ __forceinline__ void run() { Base::run(this->share_of_block()); }

 private:
  friend Base;
  using Base::lane_;
  using Base::p_;

  __device__ __forceinline__ static int32_t first_position(const Share& share) { return share.begin; }
  __device__ __forceinline__ void find_item(const Share& share, uint32_t n, int32_t& position,
                                            PrefillSegment& segment) const {
    const bool whole = share.tiles == 0;
    if (whole && n > 0) {
      if (lane_ == 0) position = static_cast<int32_t>(gridDim.x + atomicAdd(p_.counters + gridDim.x, 1u));
      position = __shfl_sync(0xffffffffu, position, 0);
    }
    if (position < share.end) {
      const PrefillSegment found = this->find_segment(position, share.end, whole);
      if (lane_ == 0) segment = found;
      __syncwarp();
      position += segment.tile_end - segment.tile_begin;
    } else if (lane_ == 0) {
      segment.request = -1;
    }
  }
  __device__ __forceinline__ void finish_item(const Share& share, const PrefillSegment& s) {
    this->finish(s, s.position, share.begin, share.tiles);
  }
  __device__ __forceinline__ void leave_items(const Share& share) const {
    if (share.tiles == 0 && Traits::thread() == Traits::kFirstBringer) this->leave();
  }
};

}  // namespace kvant::attn::cuda
