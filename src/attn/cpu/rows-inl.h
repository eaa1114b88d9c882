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
#include "attn/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Adds the 128-bit blocks of a vector.
template <class D, class V = hn::Vec<D>>
HWY_INLINE auto add_blocks([[maybe_unused]] D d, V v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return add_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// Sums of four vectors, stored next to each other.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_four_sums(D d, V a, V b, V c, V e, float* out) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> du64;
  const auto ab = hn::BitCast(du64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(du64, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const V sums =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(du64, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(du64, ab, ce)));
  const hn::FixedTag<float, 4> d4;
  hn::StoreU(add_blocks(d, sums), d4, out);
}

/// Dot products of kRows queries and 4 kGroups keys.
template <int kRows, int kGroups>
HWY_INLINE void score_block(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, int32_t dim,
                            float* HWY_RESTRICT scores) {
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
  for (int32_t i = 0; i < dim; i += lanes) {
    V row[kRows];
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) row[r] = hn::LoadU(d, q + r * dim + i);
    HWY_UNROLL(8)
    for (int j = 0; j < kKeys; ++j) {
      const V key = hn::LoadU(d, k + j * dim + i);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) acc[r][j] = hn::MulAdd(row[r], key, acc[r][j]);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int g = 0; g < kGroups; ++g)
      store_four_sums(d, acc[r][4 * g], acc[r][4 * g + 1], acc[r][4 * g + 2], acc[r][4 * g + 3],
                      scores + r * kKeyTile + 4 * g);
  }
}

template <int kRows, int kGroups>
void score_rows(const float* q, const float* k, int32_t dim, int32_t first, int32_t last, float* scores) {
  int32_t j = first & ~3;
  for (; j + 4 * kGroups <= last; j += 4 * kGroups)
    score_block<kRows, kGroups>(q, k + static_cast<int64_t>(j) * dim, dim, scores + j);
  for (; j < last; j += 4) score_block<kRows, 1>(q, k + static_cast<int64_t>(j) * dim, dim, scores + j);
}

/// Keys are taken in fours that may reach past the expanded ones: those scores are masked by the softmax.
void row_scores(const RowTile& tile) {
  int32_t r = 0;
  const auto q = [&](int32_t row) { return tile.q + static_cast<int64_t>(row) * tile.dim_k; };
  for (; r + 3 <= tile.num_rows; r += 3)
    score_rows<3, 1>(q(r), tile.expanded, tile.dim_k, tile.first, tile.last, tile.scores + r * kKeyTile);
  if (tile.num_rows - r == 2)
    score_rows<2, 1>(q(r), tile.expanded, tile.dim_k, tile.first, tile.last, tile.scores + r * kKeyTile);
  if (tile.num_rows - r == 1)
    score_rows<1, 2>(q(r), tile.expanded, tile.dim_k, tile.first, tile.last, tile.scores + r * kKeyTile);
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
    tile.rescale[r] = rescale;
  }
}

/// out = out * rescale + probabilities * values, for kRows rows and kVectors vectors of head_dim_v.
template <int kRows, int kVectors>
HWY_INLINE void value_block(const RowTile& tile, int32_t row, int32_t column) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t dim = tile.dim_v;
  float* HWY_RESTRICT out = tile.out + static_cast<int64_t>(row) * dim + column;
  const float* HWY_RESTRICT p = tile.scores + row * kKeyTile;
  const float* HWY_RESTRICT v = tile.expanded + column;
  V acc[kRows][kVectors];
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int i = 0; i < kVectors; ++i)
      acc[r][i] = hn::Mul(hn::LoadU(d, out + r * dim + i * lanes), hn::Set(d, tile.rescale[row + r]));
  }
  for (int32_t j = tile.first; j < tile.last; ++j) {
    V weight[kRows];
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) weight[r] = hn::Set(d, p[r * kKeyTile + j]);
    HWY_UNROLL(8)
    for (int i = 0; i < kVectors; ++i) {
      const V value = hn::LoadU(d, v + static_cast<int64_t>(j) * dim + i * lanes);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) acc[r][i] = hn::MulAdd(weight[r], value, acc[r][i]);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int i = 0; i < kVectors; ++i) hn::StoreU(acc[r][i], d, out + r * dim + i * lanes);
  }
}

template <int kRows, int kVectors>
void value_rows(const RowTile& tile, int32_t row) {
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(hn::ScalableTag<float>()));
  int32_t column = 0;
  for (; column + kVectors * lanes <= tile.dim_v; column += kVectors * lanes)
    value_block<kRows, kVectors>(tile, row, column);
  for (; column < tile.dim_v; column += lanes) value_block<kRows, 1>(tile, row, column);
}

void row_values(const RowTile& tile) {
  int32_t r = 0;
  for (; r + 3 <= tile.num_rows; r += 3) value_rows<3, 4>(tile, r);
  if (tile.num_rows - r == 2) value_rows<2, 4>(tile, r);
  if (tile.num_rows - r == 1) value_rows<1, 8>(tile, r);
}

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
