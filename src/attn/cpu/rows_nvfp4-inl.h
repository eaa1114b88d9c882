// One key tile for few query rows over NVFP4, in lane order. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_ROWS_NVFP4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_ROWS_NVFP4_INL_H_
#undef KVANT_ATTN_CPU_ROWS_NVFP4_INL_H_
#else
#define KVANT_ATTN_CPU_ROWS_NVFP4_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "attn/cpu/attention_kernels.h"
#include "attn/cpu/e2m1_lanes-inl.h"
#include "attn/cpu/expand-inl.h"
#include "attn/cpu/row_steps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int32_t kMaxStepBlocks = kRowStep * 512 / kNvfp4Block;

/// Keys of a step whose scales are read: from a multiple of four to a multiple of four.
inline int32_t first_scaled_key(const RowTile& tile) { return tile.first & ~3; }
inline int32_t num_scaled_keys(const RowTile& tile) { return ((tile.last + 3) & ~3) - first_scaled_key(tile); }

/// The same bits as `each_scale` with half the work, where no scale is NaN or negative and g is no giant: bits of e4m3
/// moved up are fp32 numbers 2^120 times too small.
template <class Put>
HWY_INLINE bool each_ordinary_scale(const uint8_t* HWY_RESTRICT scales, int32_t count, float g, const Put& put) {
  const E2m1Lanes::Floats d;
  const E2m1Lanes::Words du;
  const hn::Rebind<uint8_t, E2m1Lanes::Words> du8;
  if (!(std::abs(g) < 128.0f)) return false;
  const auto factor = hn::Set(d, g * 0x1p120f);
  auto largest = hn::Zero(du);
  for (int32_t i = 0; i < count; i += E2m1Lanes::kLanes) {
    const auto codes = hn::PromoteTo(du, hn::LoadU(du8, scales + i));
    largest = hn::Max(largest, codes);
    put(i, hn::Mul(hn::BitCast(d, hn::ShiftLeft<20>(codes)), factor));
  }
  return hn::AllTrue(du, hn::Lt(largest, hn::Set(du, 0x7fu)));
}

/// Calls put(index, vector) for the block scales of a step, [keys, blocks], times g; once more for all of them where
/// some are out of the ordinary.
template <class Put>
HWY_INLINE void each_scale(const RowTile& tile, int32_t dim, const Put& put) {
  const E2m1Lanes::Floats d;
  const hn::Repartition<uint16_t, E2m1Lanes::Floats> du16;
  const hn::Half<decltype(du16)> half;
  const hn::Rebind<uint8_t, decltype(du16)> du8;
  const EncodedRows& rows = tile.rows;
  const int32_t num_keys = num_scaled_keys(tile), blocks = dim / kNvfp4Block;
  const uint8_t* scales = rows.scales + (first_scaled_key(tile) - tile.begin) * rows.scale_stride;
  uint8_t adjacent[kMaxStepBlocks];
  if (rows.scale_stride != blocks) {
    for (int32_t key = 0; key < num_keys; ++key)
      for (int32_t block = 0; block < blocks; block += 2)
        std::memcpy(adjacent + key * blocks + block, scales + key * rows.scale_stride + block, 2);
    scales = adjacent;
  }
  const int32_t count = num_keys * blocks;
  if (each_ordinary_scale(scales, count, rows.g, put)) return;
  const auto g = hn::Set(d, rows.g * 256.0f);
  for (int32_t i = 0; i < count; i += 2 * E2m1Lanes::kLanes) {
    const auto bits = fp8_to_f16_bits<true>(du16, hn::PromoteTo(du16, hn::LoadU(du8, scales + i)));
    put(i, hn::Mul(promote_f16(d, hn::LowerHalf(half, bits)), g));
    put(i + E2m1Lanes::kLanes, hn::Mul(promote_f16(d, hn::UpperHalf(half, bits)), g));
  }
}

/// Dot products of kRows queries in lane order: the elements of a key go from their codes straight into them, and sums
/// of blocks take their scales, from [keys, chunks, lanes]. kChunks 0 = any number.
template <int kRows, int kChunks>
void nvfp4_score_rows(const RowTile& tile, const float* HWY_RESTRICT scales, int32_t row) {
  using L = E2m1Lanes;
  const L::Floats d;
  const int32_t chunks = kChunks > 0 ? kChunks : tile.dim_k / L::kElements;
  const int64_t stride = tile.rows.data_stride;
  const float* HWY_RESTRICT q = tile.q_lanes + static_cast<int64_t>(row) * chunks * L::kElements;
  int32_t key = tile.first & ~3;
  const uint8_t* HWY_RESTRICT codes = tile.rows.data + (key - tile.begin) * stride;
  for (; key < tile.last; key += 4) {
    if (row == 0) prefetch_ahead(tile, key, 4);
    L::V acc[kRows][4];
    HWY_UNROLL(2)
    for (int j = 0; j < 4; j += 2) {
      HWY_UNROLL(2)
      for (int32_t c = 0; c < chunks; ++c) {
        L::V sums[kRows][2];
        const auto take = [&](int32_t vector, L::V first, L::V second) HWY_ATTR {
          HWY_UNROLL(4)
          for (int r = 0; r < kRows; ++r) {
            const auto query = hn::LoadU(d, q + (r * chunks + c) * L::kElements + vector * L::kLanes);
            sums[r][0] = vector == 0 ? hn::Mul(query, first) : hn::MulAdd(query, first, sums[r][0]);
            sums[r][1] = vector == 0 ? hn::Mul(query, second) : hn::MulAdd(query, second, sums[r][1]);
          }
        };
        L::for_each(take, codes + c * L::kElements / 2, codes + stride + c * L::kElements / 2);
        const auto first_scale = hn::Load(d, scales + c * L::kLanes);
        const auto second_scale = hn::Load(d, scales + (chunks + c) * L::kLanes);
        HWY_UNROLL(4)
        for (int r = 0; r < kRows; ++r) {
          acc[r][j] = c == 0 ? hn::Mul(sums[r][0], first_scale) : hn::MulAdd(sums[r][0], first_scale, acc[r][j]);
          acc[r][j + 1] =
              c == 0 ? hn::Mul(sums[r][1], second_scale) : hn::MulAdd(sums[r][1], second_scale, acc[r][j + 1]);
        }
      }
      codes += 2 * stride;
      scales += 2 * chunks * L::kLanes;
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r)
      store_four_sums(d, acc[r][0], acc[r][1], acc[r][2], acc[r][3], tile.scores + (row + r) * kKeyTile + key);
  }
}

inline void nvfp4_scores(const RowTile& tile) {
  using L = E2m1Lanes;
  const L::Floats d;
  HWY_ALIGN float lanes[kMaxStepBlocks * 2];  // [keys, chunks, lanes]
  static_assert(L::kLanes == 2 * L::kBlocks);
  each_scale(tile, tile.dim_k, [&](int32_t i, L::V two_chunks) HWY_ATTR {
    hn::Store(L::spread<0>(two_chunks), d, lanes + 2 * i);
    hn::Store(L::spread<1>(two_chunks), d, lanes + 2 * i + L::kLanes);
  });
  for_row_groups(tile.num_rows, [&](auto rows, int32_t row) HWY_ATTR {
    switch (tile.dim_k / L::kElements) {
      case 1: return nvfp4_score_rows<rows, 1>(tile, lanes, row);
      case 2: return nvfp4_score_rows<rows, 2>(tile, lanes, row);
      default: return nvfp4_score_rows<rows, 0>(tile, lanes, row);
    }
  });
}

/// Probabilities of a step times block scales [keys, blocks] of one chunk, [keys, kRows, lanes] from an even key on:
/// values then are multiplied as their codes say.
template <int kRows>
struct Nvfp4Weights {
  using L = E2m1Lanes;
  static constexpr int32_t kStride = kRows * L::kLanes;

  HWY_INLINE void fill(const RowTile& tile, const float* HWY_RESTRICT scales, int32_t row, int32_t first_block) {
    const L::Floats d;
    const hn::Half<L::Floats> half;
    const int32_t blocks_of_key = tile.dim_v / kNvfp4Block;
    scales += ((tile.first & ~1) - first_scaled_key(tile)) * blocks_of_key + first_block;
    float* out = values;
    for (int32_t key = tile.first & ~1; key < tile.last; key += 2, out += 2 * kStride, scales += 2 * blocks_of_key) {
      const auto blocks = hn::Combine(d, hn::LoadU(half, scales + blocks_of_key), hn::LoadU(half, scales));
      const auto first = L::spread<0>(blocks);
      const auto second = L::spread<1>(blocks);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        const float* p = tile.scores + (row + r) * kKeyTile + key;
        hn::Store(hn::Mul(first, hn::Set(d, p[0])), d, out + r * L::kLanes);
        hn::Store(hn::Mul(second, hn::Set(d, p[1])), d, out + kStride + r * L::kLanes);
      }
    }
  }

  HWY_ALIGN float values[kRowStep * kStride];
};

/// Of the vectors of a chunk those that one pass over the keys adds to: elements e and e + 2 of u in [kFirst, kFirst +
/// kCount). Sums stay in registers while the keys go by.
template <int kRows, E2m1Lanes::Codes kCodes, int kFirst, int kCount>
HWY_INLINE void nvfp4_value_pass(const RowTile& tile, const Nvfp4Weights<kRows>& weights, int32_t row, int32_t chunk) {
  using L = E2m1Lanes;
  const L::Floats d;
  const int32_t dim = tile.dim_v;
  const int64_t stride = tile.rows.data_stride;
  const int32_t first_vector = 4 * kFirst + (kCodes == L::Codes::kHigh ? 1 : 0);
  float* HWY_RESTRICT out = tile.out_lanes + static_cast<int64_t>(row) * dim + chunk + first_vector * L::kLanes;
  L::V acc[kRows][kCount][2];
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int u = 0; u < kCount; ++u) {
      acc[r][u][0] = hn::LoadU(d, out + r * dim + 4 * u * L::kLanes);
      acc[r][u][1] = hn::LoadU(d, out + r * dim + (4 * u + 2) * L::kLanes);
    }
  }
  const uint8_t* HWY_RESTRICT codes = tile.rows.data + (tile.first - tile.begin) * stride + chunk / 2;
  const float* HWY_RESTRICT weight = weights.values + (tile.first & 1) * weights.kStride;
  const auto add = [&](int u, hn::Vec<L::Words> words) HWY_ATTR {
    const auto lower = L::lower(words);
    const auto upper = L::upper(words);
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const auto w = hn::Load(d, weight + r * L::kLanes);
      acc[r][u][0] = hn::MulAdd(w, lower, acc[r][u][0]);
      acc[r][u][1] = hn::MulAdd(w, upper, acc[r][u][1]);
    }
  };
  for (int32_t left = tile.last - tile.first; left > 0; --left) {
    const L::Halves halves(L::select<kCodes>(L::load(codes)));
    const auto words = halves.words<kFirst>();
    const auto next_words = halves.words<1>();
    add(0, words);
    if constexpr (kCount == 2) add(1, next_words);
    codes += stride;
    weight += weights.kStride;
  }
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int u = 0; u < kCount; ++u) {
      hn::StoreU(acc[r][u][0], d, out + r * dim + 4 * u * L::kLanes);
      hn::StoreU(acc[r][u][1], d, out + r * dim + (4 * u + 2) * L::kLanes);
    }
  }
}

/// out += probabilities * values in lane order, for kRows rows.
template <int kRows>
void nvfp4_value_rows(const RowTile& tile, const float* HWY_RESTRICT scales, int32_t row) {
  using L = E2m1Lanes;
  Nvfp4Weights<kRows> weights;
  for (int32_t chunk = 0; chunk < tile.dim_v; chunk += L::kElements) {
    weights.fill(tile, scales, row, chunk / kNvfp4Block);
    if constexpr (kRows <= 3) {
      nvfp4_value_pass<kRows, L::Codes::kLow, 0, 2>(tile, weights, row, chunk);
      nvfp4_value_pass<kRows, L::Codes::kHigh, 0, 2>(tile, weights, row, chunk);
    } else {
      nvfp4_value_pass<kRows, L::Codes::kLow, 0, 1>(tile, weights, row, chunk);
      nvfp4_value_pass<kRows, L::Codes::kHigh, 0, 1>(tile, weights, row, chunk);
      nvfp4_value_pass<kRows, L::Codes::kLow, 1, 1>(tile, weights, row, chunk);
      nvfp4_value_pass<kRows, L::Codes::kHigh, 1, 1>(tile, weights, row, chunk);
    }
  }
}

inline void nvfp4_values(const RowTile& tile) {
  for (int32_t key = tile.first & ~3; key < tile.last; key += 4) prefetch_ahead(tile, key, 4);
  const E2m1Lanes::Floats d;
  HWY_ALIGN float scales[kMaxStepBlocks];  // [keys, blocks]
  each_scale(tile, tile.dim_v, [&](int32_t i, E2m1Lanes::V blocks) HWY_ATTR { hn::Store(blocks, d, scales + i); });
  for_row_groups(tile.num_rows, [&](auto rows, int32_t row) HWY_ATTR { nvfp4_value_rows<rows>(tile, scales, row); });
}

inline void to_lane_order(const float* row, int32_t head_dim, float* lanes) {
  for (int32_t i = 0; i < head_dim; i += E2m1Lanes::kElements) E2m1Lanes::to_lanes(row + i, lanes + i);
}

inline void add_lane_order(const float* lanes, int32_t head_dim, float* row) {
  const auto add = [&](int32_t i, auto values) HWY_ATTR {
    const hn::DFromV<decltype(values)> d;
    hn::StoreU(hn::Add(hn::LoadU(d, row + i), values), d, row + i);
  };
  for (int32_t i = 0; i < head_dim; i += E2m1Lanes::kElements, row += E2m1Lanes::kElements)
    E2m1Lanes::from_lanes(lanes + i, add);
}

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
