#pragma once

// Tiles whose K and V have one format that is known when the program is compiled, from pages to f16 operands.

#include <cstdint>

#include "attn/cuda/generic/prefill_pages.cuh"
#include "attn/cuda/sm90/phase_barrier.cuh"

namespace kvant::attn::cuda {

/// A warp brings sixteen keys of a tile, K and V, or one of both where eight warps bring. Its copies go, in the order
/// of the pages, to a place of its own, from where it expands them: it waits for no other. A lane expands units of two
/// rows eight apart. Lanes are dealt so that eight neighbours meet different banks, both where they read and where they
/// write.
template <class Traits, UnitFormat kFormat>
class WarpTiles {
 public:
  __device__ __forceinline__ WarpTiles(const PrefillParams& params, typename Traits::SharedStorage& shared,
                                       uint32_t warp, uint32_t lane)
      : pool_(params.base),
        in_page_((1u << params.page_shift) - 1),
        group_(kBoth ? warp : warp / 2),
        lane_(lane),
        first_plane_(kBoth ? 0 : static_cast<int>(warp % 2)),
        memory_(shared_address(shared.raw[0]) + warp * kWarpBytes),
        phases_(shared_address(shared.raw_phases) + 8 * kRawStages * warp),
        operands_(shared_address(shared.k[0]) + kRowBytes * kGroup * group_ + lane_place()) {
    takes_ = params.head_dim_k == kDim && params.head_dim_v == kDim;
    if constexpr (kHasScales) takes_ &= in_page_ >= kGroup - 1;
    rows_at_once_ = in_page_ >= kGroup - 1;
    for (int i = 0; i < 2; ++i) {
      const PagePlane& plane = pool_.plane[i];
      takes_ &= (plane.data | plane.data_head | plane.data_token) % 16 == 0;
      if constexpr (kHasScales) takes_ &= has_lane_scales(plane, i);
      rows_at_once_ &= plane.data_token == kDataRow;
    }
  }

  /// What copies need of an item.
  struct Item {
    int32_t begin = 0, end = 0;  ///< Tiles that are seen whole; none where this way is not open.
    uint32_t data[2] = {}, scales = 0;
  };
  __device__ __forceinline__ Item item_of(const PrefillSegment& s) const {
    Item item;
    if (!takes_) return item;
    item.begin = (s.key_begin + Traits::kKeys - 1) / Traits::kKeys, item.end = s.key_end / Traits::kKeys;
    if constexpr (kBulk) {
      const PagePlane& plane = pool_.plane[plane_of_row()];
      item.data[0] = plane.data + s.head * plane.data_head;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const PagePlane& plane = pool_.plane[i];
        item.data[i] =
            plane.data + s.head * plane.data_head + lane_ / kChunks * plane.data_token + lane_ % kChunks * 16;
      }
    }
    if constexpr (kHasScales) {
      const PagePlane& plane = pool_.plane[plane_of_scales()];
      item.scales = plane.scale + s.head * plane.scale_head + lane_ % kScaleLanes * 16;
    }
    return item;
  }
  /// Whether a tile is seen whole and none of its pages is exact. `entry` as PrefillPages::load_entry gives it.
  __device__ __forceinline__ static bool takes(const Item& item, int32_t tile, int32_t entry) {
    return __all_sync(0xffffffffu, tile >= item.begin && tile < item.end &&
                                       static_cast<uint32_t>(entry) < static_cast<uint32_t>(kExactPageBit));
  }

  __device__ __forceinline__ void copy(const Item& item, int32_t tile, int32_t entry, uint32_t raw) const {
    if constexpr (kBulk)
      copy_in_bulk(item, tile, entry, raw);
    else
      copy_chunks(item, tile, entry, raw);
    commit_copies();  // Of none too: other tiles count.
  }
  /// Waits for the copies of a tile; in bulk, for the end of the phase of this parity.
  __device__ __forceinline__ void wait(uint32_t raw, uint32_t parity) const {
    if constexpr (kBulk)
      wait_for_phase(phases_ + 8 * raw, parity);
    else
      wait_copies<kRawStages - 1>();
    __syncwarp();
  }
  /// Turns what has been copied into operands.
  __device__ __forceinline__ void expand(uint32_t k_multiplier, uint32_t v_multiplier, uint32_t stage,
                                         uint32_t raw) const {
    const uint32_t from = memory_ + raw * kRawBytes, to = operands_ + stage * kStageBytes;
    if constexpr (kBoth && kBulk) {
      Units units;
      load<0>(from, units);
      expand_units(units, to, k_multiplier);
      load<1>(from + kPlane, units);
      expand_units(units, to + kValues, v_multiplier);
    } else if constexpr (kBoth) {
      // All is asked for before the first is waited for.
      Units k, v;
      load<0>(from, k);
      load<1>(from + kPlane, v);
      expand_units(k, to, k_multiplier);
      expand_units(v, to + kValues, v_multiplier);
    } else {
      Units units;
      if (first_plane_ == 0)
        load<0>(from, units);
      else
        load<1>(from, units);
      expand_units(units, to + first_plane_ * kValues, first_plane_ == 0 ? k_multiplier : v_multiplier);
    }
  }

 private:
  /// A lane copies a row, or one for all where they follow each other.
  __device__ __forceinline__ void copy_in_bulk(const Item& item, int32_t tile, int32_t entry, uint32_t raw) const {
    const uint32_t row = lane_ % kGroup;
    const uint32_t page = __shfl_sync(0xffffffffu, entry, (kGroup * group_ + row) / 8);
    const uint8_t* from = pool_.pages + static_cast<uint64_t>(page) * static_cast<uint32_t>(pool_.page_stride);
    const uint32_t token = (tile * Traits::kKeys + kGroup * group_ + row) & in_page_;
    const uint32_t to = memory_ + raw * kRawBytes + (kBoth ? lane_ / kGroup * kPlane : 0);
    const uint32_t phase = phases_ + 8 * raw;
    if (lane_ == 0) arrive_and_expect(phase, (kBoth ? 2 : 1) * kGroup * kDataRow);
    __syncwarp();
    if ((kBoth || lane_ < kGroup) && (row == 0 || !rows_at_once_))
      copy_bulk(to + row * kDataRow, from + (item.data[0] + token * pool_.plane[plane_of_row()].data_token),
                rows_at_once_ ? kGroup * kDataRow : kDataRow, phase);
  }
  __device__ __forceinline__ void copy_chunks(const Item& item, int32_t tile, int32_t entry, uint32_t raw) const {
    const uint32_t to = memory_ + raw * kRawBytes;
    const uint32_t key = tile * Traits::kKeys + kGroup * group_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t page = __shfl_sync(0xffffffffu, entry, 2 * group_ + half);
      const uint8_t* from = pool_.pages + static_cast<uint64_t>(page) * static_cast<uint32_t>(pool_.page_stride);
      const uint32_t token = key + 8 * half & in_page_;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!kBoth && first_plane_ != i) continue;
        copy_eight_rows(to + (kBoth ? kPlane * i : 0) + 8 * kDataRow * half,
                        from + (item.data[i] + token * pool_.plane[i].data_token), pool_.plane[i].data_token);
      }
      if constexpr (kHasScales) {
        if (half == 0 && lane_ < (kBoth ? 2 : 1) * kScaleLanes)
          copy_async_16(to + kScales + lane_ / kScaleLanes * kPlane + lane_ % kScaleLanes * 16,
                        from + (item.scales + (token >> 4) * pool_.plane[plane_of_scales()].scale_token[4]));
      }
    }
  }

  static constexpr int kDim = Traits::kDimK;
  static constexpr bool kHasScales = kFormat == UnitFormat::kNvfp4Packed;
  /// Whole rows of bytes by the copy engine; rows of half bytes and their scales take too many copies for that.
  static constexpr bool kBulk = !kHasScales;
  static_assert(kHasScales || kFormat == UnitFormat::kE4m3, "a format that lanes are dealt for");
  static_assert(Traits::kDimV == kDim && (kDim == 64 || kDim == 128), "lanes are dealt for these rows");
  static constexpr uint32_t kGroup = 16;
  static constexpr uint32_t kRawStages = Traits::kRawStages;
  static constexpr uint32_t kRawBytes = sizeof(Traits::SharedStorage::raw) / kRawStages;
  static constexpr uint32_t kWarps = Traits::kBringers / 32, kWarpBytes = kRawBytes / kWarps;
  static_assert(Traits::kKeys == 4 * kGroup && (kWarps == 4 || kWarps == 8), "four groups of keys");
  static constexpr bool kBoth = kWarps == 4;  ///< Planes are one warp's.
  static constexpr uint32_t kUnits = kDim / 16;
  static constexpr uint32_t kDataRow = kUnits * (kHasScales ? 8 : 16);
  static constexpr uint32_t kChunks = kDataRow / 16;  ///< Of 16 bytes, that lanes copy.
  static constexpr uint32_t kScaleLanes = kUnits;     ///< Of a plane: a unit's scale is a byte, for sixteen keys.
  static constexpr uint32_t kScales = kGroup * kDataRow, kScaleBytes = kHasScales ? kGroup * kUnits : 0;
  static constexpr uint32_t kPlane = kWarpBytes / (kBoth ? 2 : 1);
  static_assert(kScales + kScaleBytes <= kPlane, "a warp's copies fit its place");
  /// Of operands: a row of a panel; from K to V; from stage to stage.
  static constexpr uint32_t kRowBytes = 128;
  static constexpr uint32_t kPanel = Traits::KRows::kPanelBytes;
  static constexpr uint32_t kValues = sizeof(Traits::SharedStorage::k), kStageBytes = kValues / Traits::kStages;

  __device__ __forceinline__ int plane_of_row() const {
    return kBoth ? static_cast<int>(lane_ / kGroup) : first_plane_;
  }
  __device__ __forceinline__ int plane_of_scales() const {
    return kBoth ? static_cast<int>(lane_ / kScaleLanes % 2) : first_plane_;
  }

  /// `from` is this lane's first chunk.
  __device__ __forceinline__ void copy_eight_rows(uint32_t to, const uint8_t* from, uint32_t token_bytes) const {
    constexpr uint32_t kRows = 32 / kChunks;  ///< At once.
#pragma unroll
    for (uint32_t row = 0; row < 8; row += kRows)
      if (kRows <= 8 || lane_ < 8 * kChunks) copy_async_16(to + row * kDataRow + 16 * lane_, from + row * token_bytes);
  }

  /// ScaleOrder::kLanes, whole tiles.
  __device__ __forceinline__ static bool has_lane_scales(const PagePlane& plane, int index) {
    constexpr bool kPairs = kDim == 128;
    const auto tokens = [&](uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
      return plane.scale_token[0] == first && plane.scale_token[1] == second && plane.scale_token[2] == third &&
             plane.scale_token[3] == fourth;
    };
    if ((plane.scale | plane.scale_head | plane.scale_token[4]) % 16 != 0) return false;
    if (index == 1) return tokens(1, 4, 8, 2) && plane.scale_block == kGroup && plane.group_blocks == kUnits;
    return tokens(2 * kUnits, 4 * kUnits, 8 * kUnits, kPairs ? 2 : 1) && plane.scale_block == (kPairs ? 1 : 2) &&
           (kPairs ? plane.scale_group == 4 && plane.group_blocks == 2 : plane.group_blocks == kUnits);
  }

  // ---- Which units are a lane's -------------------------------------------------------------------------------------
  // Rows row() and row() + 8. e4m3: units part() and the same of the row's other half. NVFP4 of 128 channels: units 2
  // pair() and the next. Else: unit part().

  static constexpr bool kPaired = kHasScales && kDim == 128;
  static constexpr int kUnitsOfLane = kDim / 64;  ///< Of a row.
  __device__ __forceinline__ uint32_t row() const { return kPaired ? lane_ % 4 + lane_ / 16 * 4 : lane_ / 4; }
  __device__ __forceinline__ uint32_t pair() const { return lane_ / 4 % 2 + 2 * ((lane_ / 2 ^ lane_ / 8) & 1u); }
  __device__ __forceinline__ uint32_t part() const { return lane_ % 4 + (kDim == 128 ? lane_ / 4 % 2 * 4 : 0); }
  __device__ __forceinline__ uint32_t first_unit() const { return kPaired ? 2 * pair() : part(); }
  /// Of a lane's first chunk among operands.
  __device__ __forceinline__ uint32_t lane_place() const {
    return Traits::KRows::offset(static_cast<int>(row()), static_cast<int>(2 * first_unit()));
  }
  __device__ __forceinline__ uint32_t lane_raw() const { return row() * kDataRow + first_unit() * (kDataRow / kUnits); }

  __device__ __forceinline__ static void store(uint32_t low, uint32_t high, const uint32_t (&x)[8]) {
    store_shared_16(low, make_uint4(x[0], x[1], x[2], x[3]));
    store_shared_16(high, make_uint4(x[4], x[5], x[6], x[7]));
  }

  /// What a lane has of one plane: rows row() and row() + 8.
  struct Units {
    uint4 raw[kHasScales ? 1 : kUnitsOfLane][2];
    uint32_t scales;
  };
  template <int kIndex>
  __device__ __forceinline__ void load(uint32_t from, Units& units) const {
    if constexpr (kHasScales) units.scales = load_scales<kIndex>(from + kScales);
    from += lane_raw();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kHasScales && !kPaired) {
        const uint2 unit = load_shared_8(from + 8 * kDataRow * half);
        units.raw[0][half] = make_uint4(unit.x, unit.y, 0, 0);
      } else {
        units.raw[0][half] = load_shared_16(from + 8 * kDataRow * half);
      }
      if constexpr (!kHasScales && kUnitsOfLane == 2)
        units.raw[1][half] = load_shared_16((from ^ 64) + 8 * kDataRow * half);
    }
  }

  /// Scales are bytes of one word: of 128 channels row and both units, then row + 8; of 64 row, row + 8.
  template <int kIndex>
  __device__ __forceinline__ uint32_t load_scales(uint32_t scales) const {
    if constexpr (kIndex == 0) {
      if constexpr (kPaired) return load_shared_4(scales + kGroup * row() + 4 * pair());
      return load_shared_2(scales + 2 * kUnits * row() + 2 * part());
    } else {
      const uint32_t at = scales + kGroup * first_unit() + row() / 2 * 4;
      const uint32_t first = load_shared_4(at);
      if constexpr (kPaired) return __byte_perm(first, load_shared_4(at + kGroup), 0x6240 + row() % 2 * 0x1111);
      return __byte_perm(first, 0, 0x4420 + row() % 2 * 0x11);
    }
  }

  __device__ __forceinline__ void expand_units(const Units& units, uint32_t to, uint32_t multiplier) const {
    if constexpr (kHasScales)
      expand_nvfp4(units, to, multiplier);
    else if (multiplier == kMultiplierOne)
      expand_e4m3<false>(units, to, multiplier);
    else
      expand_e4m3<true>(units, to, multiplier);
  }

  template <bool kScaled>
  __device__ __forceinline__ void expand_e4m3(const Units& units, uint32_t to, uint32_t multiplier) const {
#pragma unroll
    for (int i = 0; i < kUnitsOfLane; ++i) {
      // The other half of a row is the other panel.
      const uint32_t low = i == 0 ? to : to + kPanel - lane_ / 4 % 2 * 2 * kPanel;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t x[8];
        expand_unit<UnitFormat::kE4m3, kScaled>(units.raw[i][half], multiplier, x);
        store(low + 8 * kRowBytes * half, (low ^ 16) + 8 * kRowBytes * half, x);
      }
    }
  }

  /// Sixteen codes times a scale.
  template <class Times>
  __device__ __forceinline__ static void expand_codes(uint32_t first, uint32_t second, const Times& times,
                                                      uint32_t (&x)[8]) {
    uint32_t pairs[2][4];
    detail::packed_codes_to_f16x2(first, pairs[0]);
    detail::packed_codes_to_f16x2(second, pairs[1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = times(pairs[i / 4][i % 4]);
  }

  __device__ __forceinline__ void expand_nvfp4(const Units& units, uint32_t to, uint32_t multiplier) const {
    uint32_t scales = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4& raw = units.raw[0][half];
      if (kPaired || half == 0)
        scales = mul_f16x2(detail::scales_to_f16x2(units.scales, kPaired ? 2 * half : 0), multiplier);
      const auto by_low = [&](uint32_t pair) { return mul_f16x2_by_low(pair, scales); };
      const auto by_high = [&](uint32_t pair) { return mul_f16x2_by_high(pair, scales); };
      uint32_t x[8];
      if (kPaired || half == 0)
        expand_codes(raw.x, raw.y, by_low, x);
      else
        expand_codes(raw.x, raw.y, by_high, x);
      store(to + 8 * kRowBytes * half, (to ^ 16) + 8 * kRowBytes * half, x);
      if constexpr (kPaired) {
        expand_codes(raw.z, raw.w, by_high, x);
        store((to ^ 32) + 8 * kRowBytes * half, (to ^ 48) + 8 * kRowBytes * half, x);
      }
    }
  }

  const PagePool& pool_;
  const uint32_t in_page_, group_, lane_;
  const int first_plane_;
  const uint32_t memory_, phases_, operands_;
  bool rows_at_once_, takes_;
};

}  // namespace kvant::attn::cuda
