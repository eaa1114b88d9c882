#pragma once

// From page-table entries to operands in shared memory.

#include <cstdint>

#include "attn/cuda/common/tile_units.cuh"
#include "attn/cuda/generic/prefill_queries.cuh"

namespace kvant::attn::cuda {

/// Brings tiles of K and V to the two operand stages. Copies of a tile are asynchronous; a thread finishes what it
/// copied itself.
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

  /// Operands of one head: what stored numbers are multiplied by on their way, and what is left for the kernel.
  struct Scaling {
    float operand_over_g = 1.0f;        ///< Of exact values.
    uint32_t multiplier = 0x3c003c00u;  ///< f16x2, of codes or their scales.
    float factor = 1.0f;                ///< Undoes what the operand carries.
  };

  __device__ void start_pages(const PrefillSegment& s) {
    if constexpr (kQuantised) {
      k_scaling_ = scaling(p_.k_scales, s.head, p_.base.plane[0].format);
      v_scaling_ = scaling(p_.v_scales, s.head, p_.base.plane[1].format);
    }
  }
  __device__ float k_factor() const { return k_scaling_.factor; }
  __device__ float v_factor() const { return v_scaling_.factor; }

  /// The entry of the page of keys 8 * (lane % 8) on of a tile, or kNoPage where no row sees any of them.
  __device__ __forceinline__ int32_t load_entry(const PrefillSegment& s, int32_t tile) const {
    const int32_t key = tile * kKeys + kGroupKeys * (lane_ % (kKeys / kGroupKeys));
    if (tile >= s.tile_end || key >= s.key_end || key + kGroupKeys <= s.key_begin) return kNoPage;
    return __ldg(&p_.page_table[s.request * p_.page_table_stride + (key >> p_.page_shift)]);
  }

  __device__ __forceinline__ void start_copies(const PrefillSegment& s, int32_t tile, int32_t entry, int stage) const {
    const TileKeys keys{tile * kKeys, s.key_begin, s.key_end, s.head, entry};
    if constexpr (kQuantised) {
      copy_units<Traits::kDimK, KRows>(keys, 0, shared_address(shared_.k[stage]), p_.head_dim_k);
      copy_units<Traits::kDimV, VRows>(keys, 1, shared_address(shared_.v[stage]), p_.head_dim_v);
    } else {
      copy_rows<KRows>(keys, 0, shared_address(shared_.k[stage]), p_.head_dim_k);
      copy_rows<VRows>(keys, 1, shared_address(shared_.v[stage]), p_.head_dim_v);
    }
    commit_copies();
  }

  /// Turns what this thread has copied into operands.
  __device__ __forceinline__ void finish_copies(const PrefillSegment& s, int32_t tile, int32_t entry, int stage) const {
    wait_copies<0>();
    if constexpr (kQuantised) {
      const TileKeys keys{tile * kKeys, s.key_begin, s.key_end, s.head, entry};
      expand_plane<Traits::kDimK, KRows>(keys, 0, shared_address(shared_.k[stage]), p_.head_dim_k, k_scaling_);
      expand_plane<Traits::kDimV, VRows>(keys, 1, shared_address(shared_.v[stage]), p_.head_dim_v, v_scaling_);
    }
  }

 private:
  /// A tile's keys; `entry` is that of keys 8 * (lane % 8) on.
  struct TileKeys {
    int32_t first, begin, end, head, entry;

    __device__ __forceinline__ int32_t page(int row) const { return __shfl_sync(0xffffffffu, entry, row / kGroupKeys); }
    __device__ __forceinline__ bool visible(int row, int32_t page) const {
      return page >= 0 && first + row >= begin && first + row < end;
    }
  };

  __device__ Scaling scaling(const float* scales, int32_t head, KvFormat format) const {
    Scaling s;
    const float g = scales == nullptr ? 1.0f : scales[p_.scale_count == 1 ? 0 : head];
    const int shift = unit_shift(format);
    // With exact pages the operand is about the value itself, so that both kinds of page agree; f16 bounds it.
    const float largest = format == KvFormat::kNvfp4 ? 0x1p-7f : 1.0f;
    float wanted = largest;
    if (p_.exact_pages && g > 0.0f) {
      wanted = g;
      if (wanted > largest) wanted = g * power_of_two(exponent_of(largest) - 1 - exponent_of(g));
      wanted = fmaxf(wanted, 0x1p-14f);
    }
    const __half multiplier = __float2half_rn(wanted * power_of_two(shift));
    const float operand = __half2float(multiplier) * power_of_two(-shift);
    s.multiplier = pack_f16(__half2float(multiplier), __half2float(multiplier));
    s.factor = g / operand;
    s.operand_over_g = g > 0.0f ? operand / g : 1.0f;
    return s;
  }

  __device__ __forceinline__ static const uint8_t* page_of(const PagePool& pool, int32_t entry) {
    return pool.pages + static_cast<uint64_t>(static_cast<uint32_t>(entry & (kExactPageBit - 1))) *
                            static_cast<uint32_t>(pool.page_stride);
  }
  __device__ __forceinline__ int32_t in_page() const { return (1 << p_.page_shift) - 1; }

  /// 16-bit rows, straight to the operand.
  template <class Rows>
  __device__ __forceinline__ void copy_rows(const TileKeys& keys, int plane, uint32_t operand, int32_t head_dim) const {
    const PagePlane& layout = p_.base.plane[plane];
    const uint32_t head_offset = layout.data + keys.head * layout.data_head;
#pragma unroll
    for (int i = 0; i < kKeys * Rows::kChunks / Traits::kThreads; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * Traits::kThreads;
      const int row = index / Rows::kChunks, chunk = index % Rows::kChunks;
      const int32_t page = keys.page(row);
      const bool copy = keys.visible(row, page) && 8 * chunk < head_dim;
      // Eight keys that start at a multiple of eight lie in one page.
      const uint32_t token = ((keys.first + (row & ~7)) & in_page()) + (row & 7);
      const uint8_t* from = page_of(p_.base, page) + (head_offset + token * layout.data_token + 16 * chunk);
      copy_async_16_or_zero(operand + Rows::offset(row, chunk), from, copy);
    }
  }

  template <int kDim>
  using Units = TileUnits<kDim, kKeys, Traits::kThreads>;

  __device__ __forceinline__ uint32_t raw_slot(int plane, int i) const {
    return shared_address(shared_.raw) + (plane == 0 ? 0 : Traits::kKRawBytes) +
           16 * (i * Traits::kThreads + threadIdx.x);
  }

  /// Stored units to this thread's own slots; exact ones straight to the operand.
  template <int kDim, class Rows>
  __device__ __forceinline__ void copy_units(const TileKeys& keys, int plane, uint32_t operand,
                                             int32_t head_dim) const {
    const PagePlane& base = p_.base.plane[plane];
    const bool nvfp4 = base.format == KvFormat::kNvfp4;
    bool direct = false;
#pragma unroll
    for (int i = 0; i < Units<kDim>::kPerThread; ++i) {
      const int row = Units<kDim>::row(i), unit = Units<kDim>::unit(i);
      const int32_t page = keys.page(row);
      const bool copy = keys.visible(row, page) && 16 * unit < head_dim;
      const bool exact = base.format == KvFormat::kF16 || (page & kExactPageBit) != 0;
      direct |= copy && exact;
      if (!copy || exact) continue;
      const uint32_t token = (keys.first + row) & in_page();
      const uint8_t* first = page_of(p_.base, page);
      const uint32_t slot = raw_slot(plane, i);
      const uint8_t* from = first + base.data_offset(keys.head, token, unit);
      if (nvfp4) {
        copy_async_8(slot, from);
        // The aligned word around the scale: its page holds it whole.
        copy_async_4(slot + 8, first + (base.scale_offset(keys.head, token, unit) & ~3u));
      } else {
        copy_async_16(slot, from);
      }
    }
    if (__any_sync(0xffffffffu, direct)) copy_exact<kDim, Rows>(keys, plane, operand, head_dim);
  }
  template <int kDim, class Rows>
  __device__ __forceinline__ void copy_exact(const TileKeys& keys, int plane, uint32_t operand,
                                             int32_t head_dim) const {
#pragma unroll 1
    for (int i = 0; i < Units<kDim>::kPerThread; ++i) {
      const int row = Units<kDim>::row(i), unit = Units<kDim>::unit(i);
      const int32_t page = keys.page(row);
      const bool exact = p_.base.plane[plane].format == KvFormat::kF16 || (page & kExactPageBit) != 0;
      if (!keys.visible(row, page) || 16 * unit >= head_dim || !exact) continue;
      const PagePool& pool = (page & kExactPageBit) != 0 ? p_.exact : p_.base;
      const uint8_t* from =
          page_of(pool, page) + pool.plane[plane].data_offset(keys.head, (keys.first + row) & in_page(), unit);
      copy_async_16(operand + Rows::offset(row, 2 * unit), from);
      copy_async_16(operand + Rows::offset(row, 2 * unit + 1), from + 16);
    }
  }

  template <int kDim, class Rows>
  __device__ __forceinline__ void expand_plane(const TileKeys& keys, int plane, uint32_t operand, int32_t head_dim,
                                               const Scaling& scaling) const {
    const PagePlane& base = p_.base.plane[plane];
    const bool whole = keys.first >= keys.begin && keys.first + kKeys <= keys.end && head_dim == kDim;
    const bool plain = (keys.entry & (kNoPage ^ (kExactPageBit - 1))) == 0 && base.format != KvFormat::kF16;
    if (!__all_sync(0xffffffffu, whole && plain)) {
      expand_units<kDim, Rows, UnitFormat::kAny>(keys, plane, operand, head_dim, scaling);
      return;
    }
    switch (base.format) {
      case KvFormat::kE4m3:
        expand_units<kDim, Rows, UnitFormat::kE4m3>(keys, plane, operand, head_dim, scaling);
        return;
      case KvFormat::kE5m2:
        expand_units<kDim, Rows, UnitFormat::kE5m2>(keys, plane, operand, head_dim, scaling);
        return;
      case KvFormat::kNvfp4:
        if (base.code_order == CodeOrder::kPacked)
          expand_units<kDim, Rows, UnitFormat::kNvfp4Packed>(keys, plane, operand, head_dim, scaling);
        else
          expand_units<kDim, Rows, UnitFormat::kNvfp4Linear>(keys, plane, operand, head_dim, scaling);
        return;
      case KvFormat::kF32:
      case KvFormat::kF16:
      case KvFormat::kBf16: return;
    }
  }

  /// kAny looks at every unit: it may be of no key, exact, or of any format. The others are for tiles of one kind.
  template <int kDim, class Rows, UnitFormat kFormat>
  __device__ __forceinline__ void expand_units(const TileKeys& keys, int plane, uint32_t operand, int32_t head_dim,
                                               const Scaling& scaling) const {
    constexpr bool kAny = kFormat == UnitFormat::kAny;
    constexpr bool kScaled = kAny || kFormat == UnitFormat::kNvfp4Packed || kFormat == UnitFormat::kNvfp4Linear;
    const PagePlane& base = p_.base.plane[plane];
#pragma unroll(kAny ? 1 : Units <kDim>::kPerThread)
    for (int i = 0; i < Units<kDim>::kPerThread; ++i) {
      const int row = Units<kDim>::row(i), unit = Units<kDim>::unit(i);
      const uint32_t low_at = operand + Rows::offset(row, 2 * unit);
      const uint32_t high_at = operand + Rows::offset(row, 2 * unit + 1);
      uint32_t x[8] = {};
      uint32_t byte = 0;
      if constexpr (kScaled) {
        if (!kAny || base.format == KvFormat::kNvfp4)
          byte = base.scale_offset(keys.head, (keys.first + row) & in_page(), unit) & 3u;
      }
      if constexpr (kAny) {
        const int32_t page = keys.page(row);
        if (keys.visible(row, page) && 16 * unit < head_dim) {
          const bool exact = (page & kExactPageBit) != 0;
          if (exact || base.format == KvFormat::kF16) {
            if (!exact || scaling.operand_over_g == 1.0f) continue;  // as it should be already
            rescale_f16(load_shared_16(low_at), load_shared_16(high_at), scaling.operand_over_g, x);
          } else {
            expand_any_unit(base.format, base.code_order, load_shared_16(raw_slot(plane, i)), byte, scaling.multiplier,
                            x);
          }
        }
      } else {
        expand_unit<kFormat>(load_shared_16(raw_slot(plane, i)), byte, scaling.multiplier, x);
      }
      store_shared_16(low_at, make_uint4(x[0], x[1], x[2], x[3]));
      store_shared_16(high_at, make_uint4(x[4], x[5], x[6], x[7]));
    }
  }

  Scaling k_scaling_, v_scaling_;
};

}  // namespace kvant::attn::cuda
