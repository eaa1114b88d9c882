#include "attn/cpu/finish.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/float_bits.h"

namespace kvant::attn::cpu {
namespace {

constexpr float kLog2E = std::numbers::log2e_v<float>;
constexpr float kLn2 = std::numbers::ln2_v<float>;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float factor(float max, float common) { return max == common ? 1.0f : std::exp2(max - common); }

}  // namespace

void store_values(const float* values, float scale, DType dtype, int64_t first, int32_t count, void* out) {
  switch (dtype) {
    case DType::kF32: {
      float* to = static_cast<float*>(out) + first;
      for (int32_t i = 0; i < count; ++i) to[i] = values[i] * scale;
      return;
    }
    case DType::kF16: {
      uint16_t* to = static_cast<uint16_t*>(out) + first;
      for (int32_t i = 0; i < count; ++i) to[i] = float_to_f16(values[i] * scale);
      return;
    }
    case DType::kBf16: {
      uint16_t* to = static_cast<uint16_t*>(out) + first;
      for (int32_t i = 0; i < count; ++i) to[i] = float_to_bf16(values[i] * scale);
      return;
    }
  }
}

MergeFactors merge_softmax(Softmax& acc, const Softmax& part) {
  const float common = acc.max < part.max ? part.max : acc.max;
  const MergeFactors factors{.acc = factor(acc.max, common), .part = factor(part.max, common)};
  acc = {.max = common, .sum = acc.sum * factors.acc + part.sum * factors.part};
  return factors;
}

void RowSink::write(int64_t token, int32_t q_head, const float* values, const Softmax& softmax) const {
  const int64_t row = token * num_q_heads + q_head;
  const bool empty = softmax.max == kMinusInfinity;
  if (lse != nullptr) lse[row] = empty ? kMinusInfinity : (softmax.max + std::log2(softmax.sum)) * kLn2;
  float scale = 0.0f;
  if (!empty && sinks == nullptr) scale = 1.0f / softmax.sum;
  if (!empty && sinks != nullptr) {
    Softmax total = softmax;
    const float kept = merge_softmax(total, {.max = sinks[q_head] * kLog2E, .sum = 1.0f}).acc;
    scale = kept / total.sum;
  }
  store_values(values, scale, dtype, row * head_dim_v, head_dim_v, out);
}

}  // namespace kvant::attn::cpu
