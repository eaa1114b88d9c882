// One key tile for few query rows: lanes run over head_dim. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_ROWS_INL_H_
#undef KVANT_ATTN_CPU_ROWS_INL_H_
#else
#define KVANT_ATTN_CPU_ROWS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <limits>

#include "attn/cpu/attention_kernels.h"
#include "attn/cpu/expand-inl.h"
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

/// Asks memory for the rows that are read soon, a few at a time: it takes in only so many wishes at once.
HWY_INLINE void prefetch_ahead(const RowTile& tile, int32_t key, int32_t count) {
  if (tile.ahead == nullptr) return;
  const uint8_t* row = tile.ahead + (key - tile.begin) * tile.ahead_stride;
  for (int32_t i = 0; i < count; ++i, row += tile.ahead_stride)
    for (int32_t byte = 0; byte < tile.ahead_bytes; byte += 64) hwy::Prefetch(row + byte);
}

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
  const int64_t stride = tile.data_stride;
  const float* HWY_RESTRICT q = tile.q + static_cast<int64_t>(row) * dim;
  const uint8_t* HWY_RESTRICT k = tile.data + (key - tile.begin) * stride;
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
  const uint8_t* HWY_RESTRICT k = tile.data + (key - tile.begin) * tile.data_stride;
  for (int32_t i = 0; i < dim; i += lanes) {
    const V first = Codec::load(d, k + i * Codec::kBytes);
    const V second = Codec::load(d, k + tile.data_stride + i * Codec::kBytes);
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
  int32_t row = 0;
  for (; tile.num_rows - row == 3 || tile.num_rows - row > 4; row += 3) score_rows<Codec, 3, 1>(tile, row);
  if (tile.num_rows - row == 4) {
    score_four_rows<Codec>(tile, row);
    row += 4;
  }
  if (tile.num_rows - row == 2) score_rows<Codec, 2, 1>(tile, row);
  if (tile.num_rows - row == 1) score_rows<Codec, 1, 2>(tile, row);
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

/// out += probabilities * values, for kRows rows and kKeys keys. Values stream by, whole rows at a time:
/// the order in which memory delivers them best.
template <class Codec, int kRows, int kKeys>
HWY_INLINE void value_block(const RowTile& tile, int32_t row, int32_t key) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t dim = tile.dim_v;
  const int64_t stride = tile.data_stride;
  V weight[kRows][kKeys];
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int j = 0; j < kKeys; ++j) weight[r][j] = hn::Set(d, tile.scores[(row + r) * kKeyTile + key + j]);
  }
  float* HWY_RESTRICT out = tile.out + static_cast<int64_t>(row) * dim;
  const uint8_t* HWY_RESTRICT v = tile.data + (key - tile.begin) * stride;
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

HWY_INLINE void rescale_row(const RowTile& tile, int32_t row) {
  if (tile.rescale[row] == 1.0f) return;
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, tile.rescale[row]);
  float* out = tile.out + static_cast<int64_t>(row) * tile.dim_v;
  for (int32_t i = 0; i < tile.dim_v; i += static_cast<int32_t>(hn::Lanes(d)))
    hn::StoreU(hn::Mul(hn::LoadU(d, out + i), factor), d, out + i);
}

template <class Codec, int kRows, int kKeys>
void value_rows(const RowTile& tile, int32_t row) {
  for (int32_t r = row; r < row + kRows; ++r) rescale_row(tile, r);
  int32_t key = tile.first;
  for (; key + kKeys <= tile.last; key += kKeys) {
    if (row == 0) prefetch_ahead(tile, key, kKeys);
    value_block<Codec, kRows, kKeys>(tile, row, key);
  }
  for (; key < tile.last; ++key) value_block<Codec, kRows, 1>(tile, row, key);
}

template <class Codec>
void row_values(const RowTile& tile) {
  int32_t row = 0;
  for (; tile.num_rows - row == 3 || tile.num_rows - row > 4; row += 3) value_rows<Codec, 3, 4>(tile, row);
  if (tile.num_rows - row == 4) {
    value_rows<Codec, 4, 2>(tile, row);
    row += 4;
  }
  for (; row + 2 <= tile.num_rows; row += 2) value_rows<Codec, 2, 4>(tile, row);
  if (row < tile.num_rows) value_rows<Codec, 1, 4>(tile, row);
}

/// `Kernel` of the codec of a format that needs no scales; null for others.
#define KVANT_ROW_KERNEL(Kernel)                    \
  switch (format) {                                 \
    case KvFormat::kF32: return Kernel<F32Codec>;   \
    case KvFormat::kF16: return Kernel<F16Codec>;   \
    case KvFormat::kBf16: return Kernel<Bf16Codec>; \
    case KvFormat::kE4m3:                           \
    case KvFormat::kE5m2:                           \
    case KvFormat::kNvfp4: return nullptr;          \
  }                                                 \
  return nullptr
inline RowKernel row_scores_of(KvFormat format) { KVANT_ROW_KERNEL(row_scores); }
inline RowKernel row_values_of(KvFormat format) { KVANT_ROW_KERNEL(row_values); }
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
