#pragma once

#include <cstdint>

#include "attn/kv/e2m1.h"
#include "attn/kv/e4m3.h"
#include "core/float_bits.h"
#include "core/host_device.h"
#include "kvant/attn/kv_format.h"

namespace kvant::attn {

inline constexpr int32_t kNvfp4Block = 16;     ///< Elements that share one e4m3 scale.
inline constexpr float kNvfp4Range = 2688.0f;  ///< 448 * 6, in units of g.
inline constexpr int32_t kMaxScaleCandidates = 9;

KVANT_HD constexpr int32_t num_scale_candidates(ScalePolicy policy) {
  switch (policy) {
    case ScalePolicy::kAmax: return 1;
    case ScalePolicy::kFourOverSix: return 2;
    case ScalePolicy::kSearch: return kMaxScaleCandidates;
  }
  return 1;
}

/// The divisor of candidate i: the code value that the block's largest magnitude is mapped to.
KVANT_HD constexpr float scale_divisor(ScalePolicy policy, int32_t i) {
  if (i == 0) return 6.0f;
  if (policy == ScalePolicy::kFourOverSix) return 4.0f;
  switch (i) {
    case 1: return 3.6f;
    case 2: return 4.0f;
    case 3: return 4.5f;
    case 4: return 5.0f;
    case 5: return 5.5f;
    case 6: return 6.5f;
    case 7: return 7.0f;
    default: return 7.5f;
  }
}

struct Nvfp4Codes {
  uint8_t scale;               ///< e4m3, never NaN.
  uint8_t codes[kNvfp4Block];  ///< Sign in bit 3.
};

/// Encodes 16 values. g is positive and 2 688 g is finite.
KVANT_HD Nvfp4Codes encode_nvfp4_block(const float* values, float g, ScalePolicy policy) {
  const float limit = fl_mul(kNvfp4Range, g);
  float x[kNvfp4Block];
  float amax = 0.0f;
  for (int32_t i = 0; i < kNvfp4Block; ++i) {
    x[i] = is_nan(values[i]) ? 0.0f : values[i];
    if (x[i] > limit) x[i] = limit;
    if (x[i] < -limit) x[i] = -limit;
    const float magnitude = x[i] < 0.0f ? -x[i] : x[i];
    if (magnitude > amax) amax = magnitude;
  }

  Nvfp4Codes best{};
  float best_error = 0.0f;
  for (int32_t candidate = 0; candidate < num_scale_candidates(policy); ++candidate) {
    Nvfp4Codes trial;
    trial.scale = float_to_e4m3(fl_div(amax, fl_mul(scale_divisor(policy, candidate), g)));
    const float step = fl_mul(e4m3_to_float(trial.scale), g);
    float error = 0.0f;
    for (int32_t i = 0; i < kNvfp4Block; ++i) {
      const uint8_t sign = static_cast<uint8_t>((float_to_bits(x[i]) >> 28) & 8u);
      const uint8_t magnitude = trial.scale == 0 ? uint8_t{0} : float_to_e2m1(fl_div(x[i], step)) & 7u;
      trial.codes[i] = sign | magnitude;
      const float residual = fl_sub(fl_mul(e2m1_to_float(trial.codes[i]), step), x[i]);
      error = fl_add(error, fl_mul(residual, residual));
    }
    if (candidate == 0 || error < best_error) {
      best = trial;
      best_error = error;
    }
  }
  return best;
}

/// What one code stands for; `scale` is the block's e4m3 byte.
KVANT_HD float decode_nvfp4(uint8_t code, uint8_t scale, float g) {
  return fl_mul(e2m1_to_float(code), fl_mul(e4m3_to_float(scale), g));
}

}  // namespace kvant::attn
