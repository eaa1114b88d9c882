#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "support/kv_test_cache.h"

namespace kvant::attn::test {

/// Which steps of a HeadPreparation a test takes.
struct PreparationCase {
  int32_t num_q_heads = 4;
  int32_t num_pairs = 0;
  RopePairs pairs = RopePairs::kHalves;
  bool bias = false;
  bool norm = false;
};

inline std::string describe(const PreparationCase& c) {
  return fmt::format("q_heads={} pairs={}{} bias={} norm={}", c.num_q_heads, c.num_pairs,
                     c.pairs == RopePairs::kHalves ? "" : " interleaved", c.bias, c.norm);
}

/// Random inputs of a HeadPreparation. Queries and outputs are the caller's.
struct PreparationInputs {
  std::vector<float> q_bias, k_bias, v_bias, q_norm, k_norm, cosines, sines;

  PreparationInputs(const PreparationCase& c, const KvLayout& layout, int64_t num_tokens, uint32_t seed) {
    const auto random = [&seed](int64_t count) { return random_values(count, seed++, false); };
    if (c.bias) {
      q_bias = random(int64_t{c.num_q_heads} * layout.head_dim_k);
      k_bias = random(int64_t{layout.num_kv_heads} * layout.head_dim_k);
      v_bias = random(int64_t{layout.num_kv_heads} * layout.head_dim_v);
    }
    if (c.norm) {
      q_norm = random(layout.head_dim_k);
      k_norm = random(layout.head_dim_k);
    }
    for (const float angle : random(num_tokens * c.num_pairs)) {
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
};

/// One head by double precision: bias, norm, RoPE.
inline std::vector<double> prepared_head(const PreparationCase& c, const float* x, int32_t head_dim, const float* bias,
                                         const float* norm, float epsilon, const float* cosines, const float* sines) {
  std::vector<double> y(x, x + head_dim);
  double squares = 0.0;
  for (int32_t i = 0; i < head_dim; ++i) {
    if (bias != nullptr) y[static_cast<size_t>(i)] += bias[i];
    squares += y[static_cast<size_t>(i)] * y[static_cast<size_t>(i)];
  }
  if (norm != nullptr) {
    for (int32_t i = 0; i < head_dim; ++i)
      y[static_cast<size_t>(i)] *= norm[i] / std::sqrt(squares / head_dim + static_cast<double>(epsilon));
  }
  for (int32_t i = 0; cosines != nullptr && i < c.num_pairs; ++i) {
    const bool halves = c.pairs == RopePairs::kHalves;
    double& first = y[static_cast<size_t>(halves ? i : 2 * i)];
    double& second = y[static_cast<size_t>(halves ? i + c.num_pairs : 2 * i + 1)];
    const double a = first, b = second;
    first = a * cosines[i] - b * sines[i];
    second = b * cosines[i] + a * sines[i];
  }
  return y;
}

}  // namespace kvant::attn::test
