#pragma once

// From page-table entries to operands in shared memory.

#include <cstdint>

#include "attn/cuda/common/matrix_ops.cuh"
#include "attn/cuda/common/tile_units.cuh"
#include "attn/cuda/generic/prefill_queries.cuh"

namespace kvant::attn::cuda {

/// Brings tiles of K and V to the two operand stages. Four threads share a row, so that a thread looks up one page for
/// all that it copies of a row's K and V. Copies of a tile are asynchronous; a thread finishes what it copied itself.
template <class Traits>
class PrefillPages : protected PrefillQueries<Traits> {
 protected:
  using Base = PrefillQueries<Traits>;
  using KRows = typename Traits::KRows;
  using VRows = typename Traits::VRows;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kGroupKeys = 8;  ///< Keys that surely share a page.
  static constexpr bool kQuantised = Traits::kSource == TileSource::kQuantised;
  using Base::Base;
  using Base::lane_;
  using Base::p_;
  using Base::shared_;

  /// What copies need of an item, read where it is used: registers are dearer than shared memory, and spilled ones
  /// would not fit the L1 cache that is left.
  struct ItemKeys {
    int32_t begin, end, head;
  };
  __device__ __forceinline__ static ItemKeys item_keys(const PrefillSegment& s) {
    return {s.key_begin, s.key_end, s.head};
  }

  /// The entry of the page of keys 8 * (lane % 8) on of a tile, or kNoPage where no row sees any of them.
  __device__ __forceinline__ int32_t load_entry(const PrefillSegment& s, int32_t tile) const {
    const int32_t key = tile * kKeys + kGroupKeys * (lane_ % (kKeys / kGroupKeys));
    if (tile >= s.tile_end || key >= s.key_end || key + kGroupKeys <= s.key_begin) return kNoPage;
    return __ldg(s.entries + (key >> p_.page_shift));
  }

  /// Before an item's first copies: notes how the scales of NVFP4 units are picked from the words around them, which is
  /// the same for all tiles, in the last words of this thread's slots.
  __device__ __forceinline__ void note_scales(const PrefillSegment& s, int raw) const {
    if constexpr (kQuantised) {
      const Part part;
      const auto note = [&](int plane, int units) {
        const PagePlane& base = p_.base.plane[plane];
        if (base.format != KvFormat::kNvfp4) return;
        for (int i = 0; i < units; ++i) {
          const uint32_t selector = scale_selector(scale_place(base, part, s.head, i));
          for (int pass = 0; pass < kPasses; ++pass)
            store_shared_4(raw_slot(part, raw, plane, pass * units + i) + 12, selector);
        }
      };
      note(0, Traits::kDimK / 64);
      note(1, Traits::kDimV / 64);
    }
  }

  __device__ __forceinline__ void start_copies(const PrefillSegment& s, int32_t tile, int32_t entry, int stage,
                                               int raw = 0) const {
    if constexpr (kQuantised) {
      const ItemKeys keys = item_keys(s);
      const Part part;
      const uint32_t k = operand_of(0, stage), v = operand_of(1, stage);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const Row row = find_row(keys, part, tile, entry, pass);
        const uint8_t* page = page_of(p_.base, row.page);
        copy_units<Traits::kDimK, KRows>(keys, part, row, page, raw, 0, pass, k);
        copy_units<Traits::kDimV, VRows>(keys, part, row, page, raw, 1, pass, v);
      }
      commit_copies();
    } else {
      start_row_copies(s, tile, entry, stage);
    }
  }

  /// start_copies of rows of 16 bits.
  __device__ __forceinline__ void start_row_copies(const PrefillSegment& s, int32_t tile, int32_t entry,
                                                   int stage) const {
    const ItemKeys keys = item_keys(s);
    const Part part;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const Row row = find_row(keys, part, tile, entry, pass);
      const uint8_t* page = page_of(p_.base, row.page);
      copy_row<KRows>(keys, part, row, page, p_.base.plane[0], operand_of(0, stage), p_.head_dim_k);
      copy_row<VRows>(keys, part, row, page, p_.base.plane[1], operand_of(1, stage), p_.head_dim_v);
    }
    commit_copies();
  }

  /// Turns what this thread has copied into operands.
  __device__ __forceinline__ void finish_copies(const PrefillSegment& s, int32_t tile, int32_t entry, int stage,
                                                int raw = 0) const {
    wait_copies<Traits::kRawStages - 1>();
    if constexpr (kQuantised) {
      const ItemKeys keys = item_keys(s);
      const Part part;
      expand_plane<Traits::kDimK, KRows>(keys, part, tile, entry, raw, 0, operand_of(0, stage), p_.head_dim_k, s.k);
      expand_plane<Traits::kDimV, VRows>(keys, part, tile, entry, raw, 1, operand_of(1, stage), p_.head_dim_v, s.v);
    }
  }

  /// Where a tile's keys (plane 0) or values lie.
  __device__ __forceinline__ uint32_t operand_of(int plane, int stage) const {
    return plane == 0 ? shared_address(shared_.k[0]) + stage * sizeof(shared_.k[0])
                      : shared_address(shared_.v[0]) + stage * sizeof(shared_.v[0]);
  }

 private:
  static constexpr int kRowThreads = 4;
  static constexpr int kPassRows = Traits::kBringers / kRowThreads;
  static_assert(Traits::kDimK % 64 == 0 && Traits::kDimV % 64 == 0, "four threads share eight chunks evenly");
  static constexpr int kPasses = (kKeys + kPassRows - 1) / kPassRows;
  static_assert(kPasses * kPassRows == kKeys && kPassRows % 16 == 0, "passes keep a row's place among sixteen");

  /// A row of a tile.
  struct Row {
    int index;
    int32_t page;
    uint32_t token;
    bool visible;
    __device__ bool exact() const { return (page & kExactPageBit) != 0; }
  };

  /// This thread's row in a pass and its part of that row. Where registers are short it is asked anew for every tile:
  /// addresses that follow from it are cheaper to compute again than to spill and read back.
  struct Part {
    uint32_t thread;
    __device__ __forceinline__ Part() : thread(Traits::thread()) {
      if constexpr (Traits::kDimK > 64 && !Traits::kRoles) {
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        thread += Traits::thread_of_row();
      }
      thread -= Traits::kFirstBringer;
    }
    __device__ __forceinline__ int row() const { return static_cast<int>(thread / kRowThreads); }
    __device__ __forceinline__ int unit(int i) const {
      return static_cast<int>(thread % kRowThreads) + kRowThreads * i;
    }
  };

  /// Where the scale of this thread's unit i lies in a page, but for the higher bits of its row's token.
  __device__ __forceinline__ uint32_t scale_place(const PagePlane& plane, const Part& part, int32_t head, int i) const {
    return plane.scale_offset(head, part.row() & 15 & in_page(), part.unit(i));
  }

  __device__ __forceinline__ uint32_t in_page() const { return (1u << p_.page_shift) - 1; }
  __device__ __forceinline__ static const uint8_t* page_of(const PagePool& pool, int32_t entry) {
    return pool.pages + static_cast<uint64_t>(static_cast<uint32_t>(entry & (kExactPageBit - 1))) *
                            static_cast<uint32_t>(pool.page_stride);
  }
  __device__ __forceinline__ Row find_row(const ItemKeys& keys, const Part& part, int32_t tile, int32_t entry,
                                          int pass) const {
    Row row;
    row.index = part.row() + pass * kPassRows;
    row.page = __shfl_sync(0xffffffffu, entry, row.index / kGroupKeys);
    const int32_t key = tile * kKeys + row.index;
    row.token = key & in_page();
    row.visible = row.page >= 0 && key >= keys.begin && key < keys.end;
    return row;
  }

  /// A 16-bit row's part, straight to the operand.
  template <class Rows>
  __device__ __forceinline__ void copy_row(const ItemKeys& keys, const Part& part, const Row& row, const uint8_t* page,
                                           const PagePlane& plane, uint32_t operand, int32_t head_dim) const {
    // Chunk 4 h + part, h a half of eight chunks. Rows that neighbour each other start with different halves, for the
    // banks' sake.
    const int first = part.unit(0) + kRowThreads * (part.row() & 1);
    const uint8_t* from = page + (plane.data + keys.head * plane.data_head + row.token * plane.data_token);
    const uint8_t* from_half[2] = {from + 16 * first, from + 16 * (first ^ kRowThreads)};
    const uint32_t to = operand + Rows::offset(row.index, first);
    const bool whole = head_dim == 8 * Rows::kChunks;
#pragma unroll
    for (int i = 0; i < Rows::kChunks / kRowThreads; ++i) {
      const int half = i % 2, eight = i / 2;
      const bool exists = whole || 8 * (8 * eight + (first ^ kRowThreads * half)) < head_dim;
      copy_async_16_or_zero((to ^ 16 * kRowThreads * half) + eight * Rows::kEightChunks, from_half[half] + 128 * eight,
                            row.visible && exists);
    }
  }

  __device__ __forceinline__ uint32_t raw_slot(const Part& part, int raw, int plane, int i) const {
    const uint32_t stage = shared_address(shared_.raw[0]) + raw * sizeof(shared_.raw[0]);
    if constexpr (Traits::kRoles) {
      // Each warp in a place of its own, where it also has what it copies in bulk.
      constexpr uint32_t kWarps = Traits::kBringers / 32;
      return stage + part.thread / 32 * (sizeof(shared_.raw[0]) / kWarps) +
             (plane == 0 ? 0 : Traits::kKRawBytes / kWarps) + 16 * (32 * i + part.thread % 32);
    }
    return stage + (plane == 0 ? 0 : Traits::kKRawBytes) + 16 * (i * Traits::kBringers + part.thread);
  }

  /// Stored units to this thread's own slots; exact ones straight to the operand.
  template <int kDim, class Rows>
  __device__ __forceinline__ void copy_units(const ItemKeys& keys, const Part& part, const Row& row,
                                             const uint8_t* page, int raw, int plane, int pass,
                                             uint32_t operand) const {
    const PagePlane& base = p_.base.plane[plane];
    const int32_t head_dim = plane == 0 ? p_.head_dim_k : p_.head_dim_v;
    if (!row.visible) return;
    if (base.format == KvFormat::kF16 || row.exact()) {
      const PagePool& pool = row.exact() ? p_.exact : p_.base;
      const uint8_t* from = page_of(pool, row.page) + pool.plane[plane].data_offset(keys.head, row.token, 0);
#pragma unroll 1
      for (int i = 0; i < Rows::kChunks / kRowThreads; ++i) {
        // Both chunks of a unit are its thread's.
        const int at = 2 * part.unit(i / 2) + i % 2;
        if (8 * at < head_dim) copy_async_16(operand + Rows::offset(row.index, at), from + 16 * at);
      }
      return;
    }
    const uint8_t* from = page + (base.data + keys.head * base.data_head + row.token * base.data_token);
    const bool nvfp4 = base.format == KvFormat::kNvfp4;
#pragma unroll
    for (int i = 0; i < kDim / 64; ++i) {
      if (16 * part.unit(i) >= head_dim) continue;
      const uint32_t slot = raw_slot(part, raw, plane, pass * (kDim / 64) + i);
      if (nvfp4) {
        copy_async_8(slot, from + 8 * part.unit(i));
        // The aligned word around the scale: its page holds it whole.
        copy_async_4(slot + 8,
                     page + ((scale_place(base, part, keys.head, i) & ~3u) + (row.token >> 4) * base.scale_token[4]));
      } else {
        copy_async_16(slot, from + 16 * part.unit(i));
      }
    }
  }

  template <int kDim, class Rows>
  __device__ __forceinline__ void expand_plane(const ItemKeys& keys, const Part& part, int32_t tile, int32_t entry,
                                               int raw, int plane, uint32_t operand, int32_t head_dim,
                                               const PrefillScaling& scaling) const {
    const PagePlane& base = p_.base.plane[plane];
    const bool whole = tile * kKeys >= keys.begin && (tile + 1) * kKeys <= keys.end && head_dim == kDim;
    const bool plain = static_cast<uint32_t>(entry) < static_cast<uint32_t>(kExactPageBit);
    if (!__all_sync(0xffffffffu, whole && plain) || base.format == KvFormat::kF16) {
      expand_units<kDim, Rows, UnitFormat::kAny>(keys, part, tile, entry, raw, plane, operand, head_dim, scaling);
      return;
    }
    const auto expand = [&]<UnitFormat kFormat>() {
      expand_units<kDim, Rows, kFormat>(keys, part, tile, entry, raw, plane, operand, head_dim, scaling);
    };
    switch (base.format) {
      case KvFormat::kE4m3: expand.template operator()<UnitFormat::kE4m3>(); return;
      case KvFormat::kE5m2: expand.template operator()<UnitFormat::kE5m2>(); return;
      case KvFormat::kNvfp4:
        if (base.code_order == CodeOrder::kPacked)
          expand.template operator()<UnitFormat::kNvfp4Packed>();
        else
          expand.template operator()<UnitFormat::kNvfp4Linear>();
        return;
      case KvFormat::kF32:
      case KvFormat::kF16:
      case KvFormat::kBf16: return;
    }
  }

  /// kAny looks at every row: it may be of no key, exact, or of any format. The others are for tiles of one kind.
  template <int kDim, class Rows, UnitFormat kFormat>
  __device__ __forceinline__ void expand_units(const ItemKeys& keys, const Part& part, int32_t tile, int32_t entry,
                                               int raw, int plane, uint32_t operand, int32_t head_dim,
                                               const PrefillScaling& scaling) const {
    constexpr bool kAny = kFormat == UnitFormat::kAny;
    const PagePlane& base = p_.base.plane[plane];
#pragma unroll(kAny ? 1 : kPasses)
    for (int pass = 0; pass < kPasses; ++pass) {
      const int index = part.row() + pass * kPassRows;
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i) {
        const uint32_t low_at = operand + Rows::offset(index, 2 * part.unit(0)) + i * Rows::kEightChunks;
        const uint32_t high_at = low_at ^ 16;
        const uint32_t slot = raw_slot(part, raw, plane, pass * (kDim / 64) + i);
        uint32_t x[8] = {};
        if constexpr (kAny) {
          const Row row = find_row(keys, part, tile, entry, pass);
          if (row.visible && 16 * part.unit(i) < head_dim) {
            if (row.exact() || base.format == KvFormat::kF16) {
              if (!row.exact() || scaling.operand_over_g == 1.0f) continue;  // as it should be already
              rescale_f16(load_shared_16(low_at), load_shared_16(high_at), scaling.operand_over_g, x);
            } else {
              expand_any_unit(base.format, base.code_order, load_shared_16(slot), scaling.multiplier, x);
            }
          }
        } else {
          expand_unit<kFormat>(load_shared_16(slot), scaling.multiplier, x);
        }
        store_shared_16(low_at, make_uint4(x[0], x[1], x[2], x[3]));
        store_shared_16(high_at, make_uint4(x[4], x[5], x[6], x[7]));
      }
    }
  }
};

}  // namespace kvant::attn::cuda
