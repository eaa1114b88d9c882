// One key tile for few query rows over NVFP4, in lane order. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_ROWS_NVFP4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_ROWS_NVFP4_INL_H_
#undef KVANT_ATTN_CPU_ROWS_NVFP4_INL_H_
#else
#define KVANT_ATTN_CPU_ROWS_NVFP4_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "attn/cpu/attention_kernels.h"
#include "attn/cpu/e2m1_lanes-inl.h"
#include "attn/cpu/expand-inl.h"
#include "attn/cpu/row_steps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A step's block scales times g as fp32 in lane order, of keys from a multiple of four to a multiple of four.
class Nvfp4Scales {
 public:
  HWY_INLINE Nvfp4Scales(const RowTile& tile, int32_t dim) : first_(tile.first & ~3), blocks_(dim / kNvfp4Block) {
    const E2m1Lanes::Floats d;
    const hn::Repartition<uint16_t, E2m1Lanes::Floats> du16;
    const hn::Half<decltype(du16)> half;
    const hn::Rebind<uint8_t, decltype(du16)> du8;
    const EncodedRows& rows = tile.rows;
    const int32_t num_keys = ((tile.last + 3) & ~3) - first_;
    const uint8_t* scales = rows.scales + (first_ - tile.begin) * rows.scale_stride;
    uint8_t adjacent[kRowStep * kMaxBlocks];
    if (rows.scale_stride != blocks_) {
      for (int32_t key = 0; key < num_keys; ++key)
        for (int32_t block = 0; block < blocks_; block += 2)
          std::memcpy(adjacent + key * blocks_ + block, scales + key * rows.scale_stride + block, 2);
      scales = adjacent;
    }
    const auto g = hn::Set(d, rows.g * 256.0f);
    for (int32_t i = 0; i < num_keys * blocks_; i += 2 * E2m1Lanes::kLanes) {
      const auto bits = fp8_to_f16_bits<true>(du16, hn::PromoteTo(du16, hn::LoadU(du8, scales + i)));
      float* out = values_ + 4 * i;
      E2m1Lanes::spread(hn::Mul(promote_f16(d, hn::LowerHalf(half, bits)), g), out);
      E2m1Lanes::spread(hn::Mul(promote_f16(d, hn::UpperHalf(half, bits)), g), out + 4 * E2m1Lanes::kLanes);
    }
  }

  /// Of one key: [chunks, groups, lanes].
  HWY_INLINE const float* of(int32_t key) const { return values_ + (key - first_) * 4 * blocks_; }

 private:
  static constexpr int32_t kMaxBlocks = 512 / kNvfp4Block;
  const int32_t first_, blocks_;
  HWY_ALIGN float values_[kRowStep * kMaxBlocks * 4];
};

/// Dot products of kRows queries in lane order: the elements of a key go from their codes straight into them, and a
/// block's sum takes its scale.
template <int kRows>
void nvfp4_score_rows(const RowTile& tile, const Nvfp4Scales& scales, int32_t row) {
  using L = E2m1Lanes;
  const L::Floats d;
  const int32_t dim = tile.dim_k;
  const int64_t stride = tile.rows.data_stride;
  const float* HWY_RESTRICT q = tile.q_lanes + static_cast<int64_t>(row) * dim;
  for (int32_t key = tile.first & ~3; key < tile.last; key += 4) {
    if (row == 0) prefetch_ahead(tile, key, 4);
    L::V acc[kRows][4];
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
      const uint8_t* HWY_RESTRICT codes = tile.rows.data + (key + j - tile.begin) * stride;
      const float* HWY_RESTRICT key_scales = scales.of(key + j);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) acc[r][j] = hn::Zero(d);
      for (int32_t i = 0; i < dim; i += L::kElements) {
        L::V sums[kRows][L::kGroups];
        L::for_each(codes + i / 2, [&](int32_t vector, L::V elements) HWY_ATTR {
          HWY_UNROLL(4)
          for (int r = 0; r < kRows; ++r) {
            L::V& sum = sums[r][vector / 4];
            const auto query = hn::LoadU(d, q + r * dim + i + vector * L::kLanes);
            sum = vector % 4 == 0 ? hn::Mul(query, elements) : hn::MulAdd(query, elements, sum);
          }
        });
        HWY_UNROLL(2)
        for (int g = 0; g < L::kGroups; ++g) {
          const auto scale = hn::Load(d, key_scales + i / 4 + g * L::kLanes);
          HWY_UNROLL(4)
          for (int r = 0; r < kRows; ++r) acc[r][j] = hn::MulAdd(sums[r][g], scale, acc[r][j]);
        }
      }
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r)
      store_four_sums(d, acc[r][0], acc[r][1], acc[r][2], acc[r][3], tile.scores + (row + r) * kKeyTile + key);
  }
}

inline void nvfp4_scores(const RowTile& tile) {
  const Nvfp4Scales scales(tile, tile.dim_k);
  for_row_groups(tile.num_rows, [&](auto rows, int32_t row) HWY_ATTR { nvfp4_score_rows<rows>(tile, scales, row); });
}

/// Of the vectors of a chunk those that one pass over the keys adds to: elements e and e + 2 of kNumGroups groups.
/// Sums stay in registers while the keys go by.
template <int kRows, E2m1Lanes::Codes kCodes, int kFirstGroup, int kNumGroups>
HWY_INLINE void nvfp4_value_pass(const RowTile& tile, const Nvfp4Scales& scales, int32_t row, int32_t chunk) {
  using L = E2m1Lanes;
  const L::Floats d;
  const int32_t dim = tile.dim_v;
  const int64_t stride = tile.rows.data_stride;
  const int32_t first_vector = 4 * kFirstGroup + (kCodes == L::Codes::kHigh ? 1 : 0);
  float* HWY_RESTRICT out = tile.out_lanes + static_cast<int64_t>(row) * dim + chunk + first_vector * L::kLanes;
  L::V acc[kRows][kNumGroups][2];
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int g = 0; g < kNumGroups; ++g) {
      acc[r][g][0] = hn::LoadU(d, out + r * dim + 4 * g * L::kLanes);
      acc[r][g][1] = hn::LoadU(d, out + r * dim + (4 * g + 2) * L::kLanes);
    }
  }
  const uint8_t* HWY_RESTRICT codes = tile.rows.data + (tile.first - tile.begin) * stride + chunk / 2;
  const float* HWY_RESTRICT key_scales = scales.of(tile.first) + chunk / 4 + kFirstGroup * L::kLanes;
  const float* HWY_RESTRICT p = tile.scores + row * kKeyTile + tile.first;
  const auto add = [&](int g, hn::Vec<L::Words> words) HWY_ATTR {
    // Each group reads the weights again: held in registers they would push sums out to memory.
    const float* weights = p;
    asm volatile("" : "+r"(weights));
    const auto scale = hn::Load(d, key_scales + g * L::kLanes);
    const auto lower = hn::Mul(L::lower(words), scale);
    const auto upper = hn::Mul(L::upper(words), scale);
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, weights[r * kKeyTile]);
      acc[r][g][0] = hn::MulAdd(weight, lower, acc[r][g][0]);
      acc[r][g][1] = hn::MulAdd(weight, upper, acc[r][g][1]);
    }
  };
  for (int32_t left = tile.last - tile.first; left > 0; --left) {
    const L::Halves halves(L::select<kCodes>(hn::LoadU(L::Bytes(), codes)));
    const auto words = halves.words<kFirstGroup>();
    const auto next_words = halves.words<1>();
    add(0, words);
    if constexpr (kNumGroups == 2) add(1, next_words);
    codes += stride;
    key_scales += dim / 4;
    ++p;
  }
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int g = 0; g < kNumGroups; ++g) {
      hn::StoreU(acc[r][g][0], d, out + r * dim + 4 * g * L::kLanes);
      hn::StoreU(acc[r][g][1], d, out + r * dim + (4 * g + 2) * L::kLanes);
    }
  }
}

/// out += probabilities * values in lane order, for kRows rows.
template <int kRows>
void nvfp4_value_rows(const RowTile& tile, const Nvfp4Scales& scales, int32_t row) {
  using Codes = E2m1Lanes::Codes;
  for (int32_t chunk = 0; chunk < tile.dim_v; chunk += E2m1Lanes::kElements) {
    if constexpr (kRows <= 3) {
      nvfp4_value_pass<kRows, Codes::kLow, 0, 2>(tile, scales, row, chunk);
      nvfp4_value_pass<kRows, Codes::kHigh, 0, 2>(tile, scales, row, chunk);
    } else {
      nvfp4_value_pass<kRows, Codes::kLow, 0, 1>(tile, scales, row, chunk);
      nvfp4_value_pass<kRows, Codes::kHigh, 0, 1>(tile, scales, row, chunk);
      nvfp4_value_pass<kRows, Codes::kLow, 1, 1>(tile, scales, row, chunk);
      nvfp4_value_pass<kRows, Codes::kHigh, 1, 1>(tile, scales, row, chunk);
    }
  }
}

inline void nvfp4_values(const RowTile& tile) {
  for (int32_t key = tile.first & ~3; key < tile.last; key += 4) prefetch_ahead(tile, key, 4);
  const Nvfp4Scales scales(tile, tile.dim_v);
  for_row_groups(tile.num_rows, [&](auto rows, int32_t row) HWY_ATTR { nvfp4_value_rows<rows>(tile, scales, row); });
}

inline void to_lane_order(const float* row, int32_t head_dim, float* lanes) {
  for (int32_t i = 0; i < head_dim; i += E2m1Lanes::kElements) E2m1Lanes::to_lanes(row + i, lanes + i);
}

inline void add_lane_order(const float* lanes, int32_t head_dim, float* row) {
  const E2m1Lanes::Floats d;
  HWY_ALIGN float chunk[E2m1Lanes::kElements];
  for (int32_t i = 0; i < head_dim; i += E2m1Lanes::kElements) {
    E2m1Lanes::from_lanes(lanes + i, chunk);
    for (int32_t j = 0; j < E2m1Lanes::kElements; j += E2m1Lanes::kLanes)
      hn::StoreU(hn::Add(hn::LoadU(d, row + i + j), hn::Load(d, chunk + j)), d, row + i + j);
  }
}

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
