#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant::engine {

/// A next-token distribution to compare others with: log-probabilities and probabilities in double.
struct ReferenceDistribution {
  std::vector<double> log_probability;
  std::vector<double> probability;
  int32_t top = 0;  ///< Most likely token; the lowest id among equals.
};

/// What one scored token says about a cache.
struct TokenScore {
  double divergence = 0.0;       ///< KL(reference || variant), natural log.
  double log_probability = 0.0;  ///< Of the token that follows in the text, under the variant.
  bool same_top = false;
};

/// Overwrites `out`; no allocation once it has held a distribution of this size.
void make_reference(std::span<const float> logits, ReferenceDistribution& out);

TokenScore score_token(const ReferenceDistribution& reference, std::span<const float> logits, int32_t next_token);

/// Quantile q in [0, 1] with linear interpolation between order statistics. `values` must not be empty.
double quantile(std::vector<double> values, double q);

}  // namespace kvant::engine
