// One key tile for few query rows: lanes run over head_dim. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_ROWS_INL_H_
#undef KVANT_ATTN_CPU_ROWS_INL_H_
#else
#define KVANT_ATTN_CPU_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "attn/cpu/attention_kernels.h"
#include "attn/cpu/expand-inl.h"
#include "attn/cpu/math-inl.h"
#include "attn/cpu/row_steps-inl.h"
#include "attn/cpu/rows_nvfp4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Dot products of kRows queries and 4 kGroups keys.
template <class Codec, int kRows, int kGroups>
HWY_INLINE void score_block(const RowTile& tile, int32_t row, int32_t key) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kKeys = 4 * kGroups;
  V acc[kRows][kKeys];
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int j = 0; j < kKeys; ++j) acc[r][j] = hn::Zero(d);
  }
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t dim = tile.dim_k;
  const int64_t stride = tile.rows.data_stride;
  const float* HWY_RESTRICT q = tile.q + static_cast<int64_t>(row) * dim;
  const uint8_t* HWY_RESTRICT k = tile.rows.data + (key - tile.begin) * stride;
  for (int32_t i = 0; i < dim; i += lanes) {
    V query[kRows];
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) query[r] = hn::LoadU(d, q + r * dim + i);
    HWY_UNROLL(8)
    for (int j = 0; j < kKeys; ++j) {
      const V elements = Codec::load(d, k + j * stride + i * Codec::kBytes);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) acc[r][j] = hn::MulAdd(query[r], elements, acc[r][j]);
    }
  }
  float* HWY_RESTRICT scores = tile.scores + row * kKeyTile + key;
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int g = 0; g < kGroups; ++g)
      store_four_sums(d, acc[r][4 * g], acc[r][4 * g + 1], acc[r][4 * g + 2], acc[r][4 * g + 3],
                      scores + r * kKeyTile + 4 * g);
  }
}

/// The same of four queries and two keys: each key is expanded once.
template <class Codec>
HWY_INLINE void score_pair(const RowTile& tile, int32_t row, int32_t key) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  V acc[2][4];
  HWY_UNROLL(2)
  for (int j = 0; j < 2; ++j) {
    HWY_UNROLL(4)
    for (int r = 0; r < 4; ++r) acc[j][r] = hn::Zero(d);
  }
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t dim = tile.dim_k;
  const float* HWY_RESTRICT q = tile.q + static_cast<int64_t>(row) * dim;
  const int64_t stride = tile.rows.data_stride;
  const uint8_t* HWY_RESTRICT k = tile.rows.data + (key - tile.begin) * stride;
  for (int32_t i = 0; i < dim; i += lanes) {
    const V first = Codec::load(d, k + i * Codec::kBytes);
    const V second = Codec::load(d, k + stride + i * Codec::kBytes);
    HWY_UNROLL(4)
    for (int r = 0; r < 4; ++r) {
      const V query = hn::LoadU(d, q + r * dim + i);
      acc[0][r] = hn::MulAdd(query, first, acc[0][r]);
      acc[1][r] = hn::MulAdd(query, second, acc[1][r]);
    }
  }
  HWY_UNROLL(2)
  for (int j = 0; j < 2; ++j) {
    float sums[4];
    store_four_sums(d, acc[j][0], acc[j][1], acc[j][2], acc[j][3], sums);
    for (int r = 0; r < 4; ++r) tile.scores[(row + r) * kKeyTile + key + j] = sums[r];
  }
}

template <class Codec>
void score_four_rows(const RowTile& tile, int32_t row) {
  for (int32_t key = tile.first & ~3; key < tile.last; key += 4) {
    if (row == 0) prefetch_ahead(tile, key, 4);
    score_pair<Codec>(tile, row, key);
    score_pair<Codec>(tile, row, key + 2);
  }
}

template <class Codec, int kRows, int kGroups>
void score_rows(const RowTile& tile, int32_t row) {
  int32_t key = tile.first & ~3;
  for (; key + 4 * kGroups <= tile.last; key += 4 * kGroups) {
    if (row == 0) prefetch_ahead(tile, key, 4 * kGroups);
    score_block<Codec, kRows, kGroups>(tile, row, key);
  }
  for (; key < tile.last; key += 4) score_block<Codec, kRows, 1>(tile, row, key);
}

/// Keys are taken in fours: scores of those that do not count are masked by the softmax.
template <class Codec>
void row_scores(const RowTile& tile) {
  for_row_groups(tile.num_rows, [&](auto rows, int32_t row) HWY_ATTR {
    if constexpr (rows == 4)
      score_four_rows<Codec>(tile, row);
    else
      score_rows<Codec, rows, rows == 1 ? 2 : 1>(tile, row);
  });
}

inline void scale_row(float* row, float factor, int32_t dim) {
  const hn::ScalableTag<float> d;
  for (int32_t i = 0; i < dim; i += static_cast<int32_t>(hn::Lanes(d)))
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, factor)), d, row + i);
}

void row_softmax(const RowTile& tile) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  // A copy: stores of scores cannot change it.
  const LogitTransform logits = tile.logits;
  const auto minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto lane_bits = hn::BitCast(du, hn::Shl(hn::Set(di, 1), hn::Iota(di, 0)));
  for (int32_t r = 0; r < tile.num_rows; ++r) {
    float* scores = tile.scores + r * kKeyTile;
    const auto bias = hn::Set(d, tile.bias[r]);
    auto max = hn::Set(d, tile.max[r]);
    for (int32_t j = 0; j < kKeyTile; j += lanes) {
      auto s = logit(d, logits, hn::LoadU(d, scores + j), bias);
      if (tile.visible != nullptr) {
        const auto bits = hn::Set(du, static_cast<uint32_t>(tile.visible[r] >> j));
        s = hn::IfThenElse(hn::RebindMask(d, hn::TestBit(bits, lane_bits)), s, minus_infinity);
      }
      max = hn::Max(max, s);
      hn::StoreU(s, d, scores + j);
    }
    const float new_max = hn::GetLane(hn::MaxOfLanes(d, max));
    // A row that has seen no key yet subtracts 0, not -inf: its probabilities stay 0, never NaN.
    const bool empty = new_max == -std::numeric_limits<float>::infinity();
    const auto subtrahend = hn::Set(d, empty ? 0.0f : new_max);
    auto sum = hn::Zero(d);
    for (int32_t j = 0; j < kKeyTile; j += lanes) {
      const auto p = exp2_nonpositive(d, hn::Sub(hn::LoadU(d, scores + j), subtrahend));
      sum = hn::Add(sum, p);
      hn::StoreU(p, d, scores + j);
    }
    const float old_max = tile.max[r];
    const hn::CappedTag<float, 1> d1;
    const float rescale =
        empty || old_max == new_max ? 1.0f : hn::GetLane(exp2_nonpositive(d1, hn::Set(d1, old_max - new_max)));
    tile.sum[r] = tile.sum[r] * rescale + hn::GetLane(hn::SumOfLanes(d, sum));
    tile.max[r] = new_max;
    if (rescale != 1.0f) {
      scale_row(tile.out + r * tile.dim_v, rescale, tile.dim_v);
      if (tile.out_lanes != nullptr) scale_row(tile.out_lanes + r * tile.dim_v, rescale, tile.dim_v);
    }
  }
}

/// out += probabilities * values, for kRows rows and kKeys keys. Values stream by, whole rows at a time:
/// the order in which memory delivers them best.
template <class Codec, int kRows, int kKeys>
HWY_INLINE void value_block(const RowTile& tile, int32_t row, int32_t key) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t dim = tile.dim_v;
  const int64_t stride = tile.rows.data_stride;
  V weight[kRows][kKeys];
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int j = 0; j < kKeys; ++j) weight[r][j] = hn::Set(d, tile.scores[(row + r) * kKeyTile + key + j]);
  }
  float* HWY_RESTRICT out = tile.out + static_cast<int64_t>(row) * dim;
  const uint8_t* HWY_RESTRICT v = tile.rows.data + (key - tile.begin) * stride;
  for (int32_t i = 0; i < dim; i += lanes) {
    V acc[kRows];
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) acc[r] = hn::LoadU(d, out + r * dim + i);
    HWY_UNROLL(4)
    for (int j = 0; j < kKeys; ++j) {
      const V elements = Codec::load(d, v + j * stride + i * Codec::kBytes);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(weight[r][j], elements, acc[r]);
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) hn::StoreU(acc[r], d, out + r * dim + i);
  }
}

template <class Codec, int kRows, int kKeys>
void value_rows(const RowTile& tile, int32_t row) {
  int32_t key = tile.first;
  for (; key + kKeys <= tile.last; key += kKeys) {
    if (row == 0) prefetch_ahead(tile, key, kKeys);
    value_block<Codec, kRows, kKeys>(tile, row, key);
  }
  for (; key < tile.last; ++key) value_block<Codec, kRows, 1>(tile, row, key);
}

template <class Codec>
void row_values(const RowTile& tile) {
  for_row_groups(tile.num_rows,
                 [&](auto rows, int32_t row) HWY_ATTR { value_rows<Codec, rows, rows == 4 ? 2 : 4>(tile, row); });
}

inline bool reads_in_place(KvFormat format, CodeOrder order, int32_t head_dim) {
  switch (format) {
    case KvFormat::kF32:
    case KvFormat::kF16:
    case KvFormat::kBf16: return true;
    case KvFormat::kE4m3:
    case KvFormat::kE5m2: return false;
    case KvFormat::kNvfp4: return order == CodeOrder::kLinear && head_dim % E2m1Lanes::kElements == 0;
  }
  return false;
}

/// A format's kernel; null for those that are never read in place.
#define KVANT_ROW_KERNEL(kernel, nvfp4_kernel)      \
  switch (format) {                                 \
    case KvFormat::kF32: return kernel<F32Codec>;   \
    case KvFormat::kF16: return kernel<F16Codec>;   \
    case KvFormat::kBf16: return kernel<Bf16Codec>; \
    case KvFormat::kNvfp4: return nvfp4_kernel;     \
    case KvFormat::kE4m3:                           \
    case KvFormat::kE5m2: return nullptr;           \
  }                                                 \
  return nullptr
inline RowKernel row_scores_of(KvFormat format) { KVANT_ROW_KERNEL(row_scores, nvfp4_scores); }
inline RowKernel row_values_of(KvFormat format) { KVANT_ROW_KERNEL(row_values, nvfp4_values); }
#undef KVANT_ROW_KERNEL

void merge_row(float* acc, float acc_factor, const float* part, float part_factor, int32_t count) {
  const hn::ScalableTag<float> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto fa = hn::Set(d, acc_factor);
  const auto fb = hn::Set(d, part_factor);
  for (int32_t i = 0; i < count; i += lanes)
    hn::StoreU(hn::MulAdd(hn::LoadU(d, acc + i), fa, hn::Mul(hn::LoadU(d, part + i), fb)), d, acc + i);
}

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
