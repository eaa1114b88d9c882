#include "ops/activation.h"

#include <algorithm>
#include <cmath>

#include "core/simd_targets.h"
#include "kvant/core/thread_pool.h"
#include "ops/row_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activation.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace kvant::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

/// x / (1 + exp(-slope x)). Exp is exact enough to its last bits down to -87; below, the result is 0 to within fp32's
/// normal range.
HWY_INLINE Vector swish(Vector x, Vector slope_x) {
  const Floats d;
  const auto e = hn::Exp(d, hn::Min(hn::Neg(slope_x), hn::Set(d, 87.0f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), e));
}

struct Silu {
  HWY_INLINE Vector operator()(Vector g, Vector u) const { return hn::Mul(swish(g, g), u); }
};

struct GeluTanh {
  HWY_INLINE Vector operator()(Vector g, Vector u) const {
    // (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)), y = sqrt(2 / pi) (g + 0.044715 g^3)
    const Floats d;
    const auto inner = hn::MulAdd(hn::Mul(hn::Mul(g, g), g), hn::Set(d, 0.044715f), g);
    return hn::Mul(swish(g, hn::Mul(inner, hn::Set(d, 1.5957691216057308f))), u);
  }
};

struct ClampedSwish {
  float limit;
  HWY_INLINE Vector operator()(Vector gate, Vector up) const {
    const Floats d;
    const auto high = hn::Set(d, limit);
    const auto g = hn::Min(gate, high);
    const auto u = hn::Max(hn::Min(up, high), hn::Neg(high));
    return hn::Mul(swish(g, hn::Mul(g, hn::Set(d, 1.702f))), hn::Add(u, hn::Set(d, 1.0f)));
  }
};

template <class Function>
HWY_INLINE void gate_product(const float* gate, const float* up, int64_t count, float* out, const Function& apply) {
  const Floats d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(apply(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
  if (i == count) return;
  HWY_ALIGN float tail[2][hn::MaxLanes(d)] = {};
  for (int64_t j = i; j < count; ++j) {
    tail[0][j - i] = gate[j];
    tail[1][j - i] = up[j];
  }
  hn::Store(apply(hn::Load(d, tail[0]), hn::Load(d, tail[1])), d, tail[0]);
  for (int64_t j = i; j < count; ++j) out[j] = tail[0][j - i];
}

void apply_gate_row(const Gate& gate, const float* g, const float* u, int64_t count, float* out) {
  switch (gate.kind) {
    case GateKind::kSilu: return gate_product(g, u, count, out, Silu{});
    case GateKind::kGeluTanh: return gate_product(g, u, count, out, GeluTanh{});
    case GateKind::kClampedSwish: return gate_product(g, u, count, out, ClampedSwish{gate.limit});
  }
}

void cap_row(float* x, int64_t count, float cap) {
  const Floats d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::Mul(hn::Set(d, cap), hn::Tanh(d, hn::Mul(hn::LoadU(d, x + i), hn::Set(d, 1.0f / cap)))), d, x + i);
  for (; i < count; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

void add_rows(const float* a, const float* b, int64_t count, float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  for (; i < count; ++i) out[i] = a[i] + b[i];
}

}  // namespace kvant::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvant::ops {

HWY_EXPORT(apply_gate_row);
HWY_EXPORT(add_rows);
HWY_EXPORT(cap_row);

void silu_mul(const float* gate, const float* up, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(apply_gate_row)({.kind = GateKind::kSilu}, gate, up, count, out);
}

void gate_rows(const Gate& gate, const float* gate_up, int64_t rows, int64_t size, float* out, Stream stream) {
  const auto apply = &HWY_DYNAMIC_DISPATCH(apply_gate_row);
  for_row_blocks(rows, size * kCostOfExp, stream, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* g = gate_up + row * 2 * size;
      apply(gate, g, g + size, size, out + row * size);
    }
  });
}

void soft_cap_rows(float* x, int64_t rows, int64_t size, float cap, Stream stream) {
  const auto apply = &HWY_DYNAMIC_DISPATCH(cap_row);
  // Rows of a vocabulary are long: pieces of them are the units of work.
  constexpr int64_t kPiece = 4096;
  const int64_t total = rows * size;
  for_row_blocks((total + kPiece - 1) / kPiece, kPiece * kCostOfExp, stream, [&](int64_t begin, int64_t end) {
    apply(x + begin * kPiece, std::min(total, end * kPiece) - begin * kPiece, cap);
  });
}

void add(const float* a, const float* b, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(add_rows)(a, b, count, out);
}

}  // namespace kvant::ops
#endif
