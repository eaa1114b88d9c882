#include "engine/quality/distribution.h"

#include "kvant/core/status.h"

#include <algorithm>
#include <cmath>

namespace kvant::engine {
namespace {

int32_t index_of_largest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double log_sum_exp(std::span<const float> logits, int32_t top) {
  const double largest = logits[static_cast<size_t>(top)];
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

}  // namespace

void make_reference(std::span<const float> logits, ReferenceDistribution& out) {
  out.top = index_of_largest(logits);
  out.log_probability.resize(logits.size());
  out.probability.resize(logits.size());
  const double normaliser = log_sum_exp(logits, out.top);
  for (size_t i = 0; i < logits.size(); ++i) {
    out.log_probability[i] = static_cast<double>(logits[i]) - normaliser;
    out.probability[i] = std::exp(out.log_probability[i]);
  }
}

TokenScore score_token(const ReferenceDistribution& reference, std::span<const float> logits, int32_t next_token) {
  KVANT_CHECK(reference.probability.size() == logits.size());
  const int32_t top = index_of_largest(logits);
  const double normaliser = log_sum_exp(logits, top);
  double divergence = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double log_probability = static_cast<double>(logits[i]) - normaliser;
    divergence += reference.probability[i] * (reference.log_probability[i] - log_probability);
  }
  // Never negative but for rounding.
  return {.divergence = std::max(divergence, 0.0),
          .log_probability = static_cast<double>(logits[static_cast<size_t>(next_token)]) - normaliser,
          .same_top = top == reference.top};
}

double quantile(std::vector<double> values, double q) {
  KVANT_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace kvant::engine
