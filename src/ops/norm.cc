#include "ops/norm.h"

#include <cmath>

#include "core/simd_targets.h"
#include "ops/row_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvant::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void norm_row(const float* x, int64_t dim, const float* weight, float eps, float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < dim; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(dim) + eps);

  const auto scales = hn::Set(d, scale);
  for (i = 0; i + lanes <= dim; i += lanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scales), hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < dim; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace kvant::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvant::ops {

HWY_EXPORT(norm_row);

void rms_norm(const float* x, int64_t rows, int64_t dim, const float* weight, float eps, float* out, Stream stream) {
  const auto row_norm = &HWY_DYNAMIC_DISPATCH(norm_row);
  for_row_blocks(rows, dim, stream, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) row_norm(x + row * dim, dim, weight, eps, out + row * dim);
  });
}

void rms_norm_row(const float* x, int64_t dim, const float* weight, float eps, float* out) {
  HWY_DYNAMIC_DISPATCH(norm_row)(x, dim, weight, eps, out);
}

}  // namespace kvant::ops
#endif
