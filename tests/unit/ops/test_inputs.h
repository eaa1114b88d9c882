#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/float_bits.h"

namespace kvant::ops::test {

/// Normal values; with `outliers`, one channel in 64 is 30 times larger, as in real activations.
inline std::vector<float> random_values(int64_t count, uint32_t seed, bool outliers = false) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(generator);
    if (outliers && i % 64 == 17) values[i] *= 30.0f;
  }
  return values;
}

/// The nearest bf16 values.
inline std::vector<float> rounded(std::vector<float> values) {
  for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  return values;
}

/// The same as bf16 bits.
inline std::vector<uint16_t> bits(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float value : values) out.push_back(float_to_bf16(value));
  return out;
}

}  // namespace kvant::ops::test
