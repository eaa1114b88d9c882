#include "ops/activation.h"

#include "kvant/core/thread_pool.h"
#include "ops/row_loop.h"
#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activation.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace kvant::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void SiluMul(const float* gate, const float* up, int64_t count, float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1.0f);
  const auto apply = [&](auto g, auto u) HWY_ATTR {
    // Exp is exact enough to its last bits down to -87; below, silu is 0 to within fp32's normal range.
    const auto e = hn::Exp(d, hn::Min(hn::Neg(g), hn::Set(d, 87.0f)));
    return hn::Mul(hn::Div(g, hn::Add(one, e)), u);
  };
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

void Add(const float* a, const float* b, int64_t count, float* out) {
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

HWY_EXPORT(SiluMul);
HWY_EXPORT(Add);

void silu_mul(const float* gate, const float* up, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(SiluMul)(gate, up, count, out);
}

void silu_mul_rows(const float* gate_up, int64_t rows, int64_t size, float* out, Stream stream) {
  for_row_blocks(rows, size * kCostOfExp, stream, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = gate_up + row * 2 * size;
      silu_mul(gate, gate + size, size, out + row * size);
    }
  });
}

void add(const float* a, const float* b, int64_t count, float* out) { HWY_DYNAMIC_DISPATCH(Add)(a, b, count, out); }

}  // namespace kvant::ops
#endif
