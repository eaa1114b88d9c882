// Vectorised exp2 and tanh. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_MATH_INL_H_
#undef KVANT_ATTN_CPU_MATH_INL_H_
#else
#define KVANT_ATTN_CPU_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include "attn/cpu/attention_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// 2^x for x <= 0, relative error below 2e-7; 0 below -126; NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_nonpositive(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -126.0f);
  // The order of operands matters: x86 returns the second one when either is NaN.
  const V clamped = hn::Max(lowest, x);
  const V whole = hn::Round(clamped);
  const V f = hn::Sub(clamped, whole);
  // Minimax polynomial of 2^f on [-0.5, 0.5], relative error 2e-9.
  V p = hn::Set(d, 0.00015353361959569156f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013398873852565885f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.00961843691766262f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.055503323674201965f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022647738456726f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931471824645996f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  const V power = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), power);
}

/// tanh(x), relative error below 4e-7; NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  const V magnitude = hn::Abs(x);
  // Near 0 an odd minimax polynomial on [0, 0.625]: the quotient below would cancel.
  const V square = hn::Mul(x, x);
  V p = hn::Set(d, -0.005704226903617382f);
  p = hn::MulAdd(p, square, hn::Set(d, 0.02063843421638012f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.0537395253777504f));
  p = hn::MulAdd(p, square, hn::Set(d, 0.13331440091133118f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.3333328068256378f));
  const V small = hn::MulAdd(hn::Mul(p, square), x, x);
  // exp(-2 |x|) as a power of two.
  const V decay = exp2_nonpositive(d, hn::Mul(magnitude, hn::Set(d, -2.885390081777927f)));
  const V one = hn::Set(d, 1.0f);
  const V large = hn::CopySign(hn::Div(hn::Sub(one, decay), hn::Add(one, decay)), x);
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), small, large);
}

/// Base-2 logit of one vector of dot products.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V logit(D d, const LogitTransform& transform, V dot, V bias) {
  const V scaled = hn::Mul(hn::Add(dot, bias), hn::Set(d, transform.scale));
  if (transform.cap == 0.0f) return scaled;
  return hn::Mul(tanh(d, scaled), hn::Set(d, transform.cap));
}

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
