#pragma once

#include <cstdint>
#include <random>
#include <vector>

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

}  // namespace kvant::ops::test
