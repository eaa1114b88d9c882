// Per-target inline code: bias, RMS norm and RoPE of one head (kvant/attn/head_preparation.h). Every operation rounds
// by itself and sums are put together in one order, so that all targets and GPUs give the same bits.

#if defined(KVANT_ATTN_CPU_PREPARE_HEADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_PREPARE_HEADS_INL_H_
#undef KVANT_ATTN_CPU_PREPARE_HEADS_INL_H_
#else
#define KVANT_ATTN_CPU_PREPARE_HEADS_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include <hwy/highway.h>

#include "attn/cpu/convert-inl.h"
#include "kvant/attn/head_preparation.h"
#include "kvant/attn/kernel_table.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::HWY_NAMESPACE {

/// Sum of squares: neighbours first, then neighbouring sums, up to one. `head_dim` is a multiple of 16.
HWY_INLINE float square_sum(const float* x, int32_t head_dim) {
  const F32Tag d;
  HWY_ALIGN float sums[kCpuKvLimits.max_head_dim / 2 + kLanes];
  int32_t count = head_dim / 2;
  for (int32_t i = 0; i < count; i += kLanes) {
    F32 even, odd;
    hn::LoadInterleaved2(d, x + 2 * i, even, odd);
    hn::StoreU(hn::Add(hn::Mul(even, even), hn::Mul(odd, odd)), d, sums + i);
  }
  while (count > 1) {
    if (count % 2 != 0) sums[count++] = 0.0f;
    count /= 2;
    int32_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      F32 even, odd;
      hn::LoadInterleaved2(d, sums + 2 * i, even, odd);
      hn::StoreU(hn::Add(even, odd), d, sums + i);
    }
    for (; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

HWY_INLINE void norm_head(const float* weight, float epsilon, int32_t head_dim, float* x) {
  const F32Tag d;
  const float mean = square_sum(x, head_dim) / static_cast<float>(head_dim);
  const F32 scale = hn::Set(d, 1.0f / std::sqrt(mean + epsilon));
  for (int32_t i = 0; i < head_dim; i += kLanes)
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::LoadU(d, weight + i)), d, x + i);
}

HWY_INLINE void turn_pair(float cosine, float sine, float& first, float& second) {
  const float a = first, b = second;
  first = a * cosine - b * sine;
  second = b * cosine + a * sine;
}

HWY_INLINE void turn_head(const HeadPreparation& args, int64_t token, float* x) {
  const F32Tag d;
  const int32_t num_pairs = args.num_pairs;
  const float* cosines = args.cosines + token * num_pairs;
  const float* sines = args.sines + token * num_pairs;
  const bool halves = args.pairs == RopePairs::kHalves;
  int32_t i = 0;
  for (; i + kLanes <= num_pairs; i += kLanes) {
    const F32 cosine = hn::LoadU(d, cosines + i), sine = hn::LoadU(d, sines + i);
    F32 a, b;
    if (halves) {
      a = hn::LoadU(d, x + i);
      b = hn::LoadU(d, x + num_pairs + i);
    } else {
      hn::LoadInterleaved2(d, x + 2 * i, a, b);
    }
    const F32 first = hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine));
    const F32 second = hn::Add(hn::Mul(b, cosine), hn::Mul(a, sine));
    if (halves) {
      hn::StoreU(first, d, x + i);
      hn::StoreU(second, d, x + num_pairs + i);
    } else {
      hn::StoreInterleaved2(first, second, d, x + 2 * i);
    }
  }
  for (; i < num_pairs; ++i)
    turn_pair(cosines[i], sines[i], x[halves ? i : 2 * i], x[halves ? num_pairs + i : 2 * i + 1]);
}

/// What applies to one kind of head.
struct HeadSteps {
  const float* bias = nullptr;  // [heads, head_dim] or null
  const float* norm = nullptr;  // [head_dim] or null
  bool turns = false;

  bool any() const { return bias != nullptr || norm != nullptr || turns; }
};

/// One head in place, not yet rounded.
HWY_INLINE void prepare_head(const HeadPreparation& args, const HeadSteps& steps, int64_t token, int32_t head,
                             int32_t head_dim, float* x) {
  const F32Tag d;
  if (steps.bias != nullptr) {
    const float* bias = steps.bias + int64_t{head} * head_dim;
    for (int32_t i = 0; i < head_dim; i += kLanes)
      hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, bias + i)), d, x + i);
  }
  if (steps.norm != nullptr) norm_head(steps.norm, args.norm_epsilon, head_dim, x);
  if (steps.turns) turn_head(args, token, x);
}

}  // namespace kvant::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
