// One key tile for a panel of query rows: lanes run over rows. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_PANELS_INL_H_
#undef KVANT_ATTN_CPU_PANELS_INL_H_
#else
#define KVANT_ATTN_CPU_PANELS_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "attn/cpu/attention_kernels.h"
#include "attn/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Both matrix products of attention: c[i, lane] (+)= sum over t of a[i * i_stride + t * t_stride] * b[t, lane].
struct PanelProduct {
  const float* a;
  int64_t i_stride, t_stride;
  const float* b;        ///< [t, width]
  float* c;              ///< [i, width]
  const float* rescale;  ///< [width]: factor of what c holds; null = overwrite
  int32_t t_first, t_last;
};

template <int kVectors, int kBlock>
HWY_INLINE void product_block(const PanelProduct& m, int32_t i_first) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = 2 * lanes;
  float* HWY_RESTRICT c = m.c + i_first * width;
  V acc[kBlock][kVectors];
  HWY_UNROLL(12)
  for (int i = 0; i < kBlock; ++i) {
    HWY_UNROLL(2)
    for (int v = 0; v < kVectors; ++v)
      acc[i][v] = m.rescale == nullptr
                      ? hn::Zero(d)
                      : hn::Mul(hn::LoadU(d, c + i * width + v * lanes), hn::LoadU(d, m.rescale + v * lanes));
  }
  const float* HWY_RESTRICT a = m.a + i_first * m.i_stride + m.t_first * m.t_stride;
  const float* HWY_RESTRICT b = m.b + m.t_first * width;
  for (int32_t t = m.t_first; t < m.t_last; ++t) {
    V row[kVectors];
    HWY_UNROLL(2)
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * lanes);
    HWY_UNROLL(12)
    for (int i = 0; i < kBlock; ++i) {
      const V factor = hn::Set(d, a[i * m.i_stride]);
      HWY_UNROLL(2)
      for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::MulAdd(factor, row[v], acc[i][v]);
    }
    a += m.t_stride;
    b += width;
  }
  HWY_UNROLL(12)
  for (int i = 0; i < kBlock; ++i) {
    HWY_UNROLL(2)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[i][v], d, c + i * width + v * lanes);
  }
}

/// Twelve accumulators hide the latency of the multiply-add and leave registers for the operands.
template <int kVectors>
void product(const PanelProduct& m, int32_t i_first, int32_t i_last) {
  constexpr int kBlock = 12 / kVectors;
  int32_t i = i_first;
  for (; i + kBlock <= i_last; i += kBlock) product_block<kVectors, kBlock>(m, i);
  for (; i + 4 <= i_last; i += 4) product_block<kVectors, 4>(m, i);
  for (; i < i_last; ++i) product_block<kVectors, 1>(m, i);
}

void panel_scores(const PanelTile& tile) {
  const PanelProduct m{.a = tile.expanded,
                       .i_stride = tile.dim_k,
                       .t_stride = 1,
                       .b = tile.q,
                       .c = tile.scores,
                       .rescale = nullptr,
                       .t_first = 0,
                       .t_last = tile.dim_k};
  tile.num_vectors == 2 ? product<2>(m, tile.first, tile.last) : product<1>(m, tile.first, tile.last);
}

void panel_values(const PanelTile& tile) {
  const PanelProduct m{.a = tile.expanded,
                       .i_stride = 1,
                       .t_stride = tile.dim_v,
                       .b = tile.scores,
                       .c = tile.out,
                       .rescale = tile.rescale,
                       .t_first = tile.first,
                       .t_last = tile.last};
  tile.num_vectors == 2 ? product<2>(m, 0, tile.dim_v) : product<1>(m, 0, tile.dim_v);
}

void panel_softmax(const PanelTile& tile) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t width = 2 * lanes;
  // A copy: stores of scores cannot change it.
  const LogitTransform logits = tile.logits;
  const auto minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int32_t first_lane = 0; first_lane < tile.num_vectors * lanes; first_lane += lanes) {
    float* scores = tile.scores + first_lane;
    const auto bias = hn::LoadU(d, tile.bias + first_lane);
    const auto old_max = hn::LoadU(d, tile.max + first_lane);
    auto max = old_max;
    for (int32_t j = tile.first; j < tile.last; ++j) {
      auto s = logit(d, logits, hn::LoadU(d, scores + j * width), bias);
      if (tile.visible != nullptr) {
        const auto bits = hn::LoadU(du, tile.visible + (j / 32) * width + first_lane);
        const auto seen = hn::TestBit(bits, hn::Set(du, 1u << (j % 32)));
        s = hn::IfThenElse(hn::RebindMask(d, seen), s, minus_infinity);
      }
      max = hn::Max(max, s);
      hn::StoreU(s, d, scores + j * width);
    }
    // A row that has seen no key yet subtracts 0, not -inf: its probabilities stay 0, never NaN.
    const auto empty = hn::Eq(max, minus_infinity);
    const auto subtrahend = hn::IfThenZeroElse(empty, max);
    auto sum = hn::Zero(d);
    for (int32_t j = tile.first; j < tile.last; ++j) {
      const auto p = exp2_nonpositive(d, hn::Sub(hn::LoadU(d, scores + j * width), subtrahend));
      sum = hn::Add(sum, p);
      hn::StoreU(p, d, scores + j * width);
    }
    const auto rescale =
        hn::IfThenElse(hn::Eq(old_max, max), hn::Set(d, 1.0f), exp2_nonpositive(d, hn::Sub(old_max, subtrahend)));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, tile.sum + first_lane), rescale, sum), d, tile.sum + first_lane);
    hn::StoreU(max, d, tile.max + first_lane);
    hn::StoreU(rescale, d, tile.rescale + first_lane);
  }
}

void merge_panel(float* acc, const float* acc_factor, const float* part, const float* part_factor, int32_t dim_v) {
  const hn::ScalableTag<float> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  for (int32_t first_lane = 0; first_lane < 2 * lanes; first_lane += lanes) {
    const auto fa = hn::LoadU(d, acc_factor + first_lane);
    const auto fb = hn::LoadU(d, part_factor + first_lane);
    for (int32_t i = 0; i < dim_v; ++i) {
      float* at = acc + static_cast<int64_t>(i) * 2 * lanes + first_lane;
      const auto scaled = hn::Mul(hn::LoadU(d, part + static_cast<int64_t>(i) * 2 * lanes + first_lane), fb);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, at), fa, scaled), d, at);
    }
  }
}

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
