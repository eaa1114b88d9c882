#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/tolerance.h"

namespace kvant::test {

/// Positions of inf and NaN must match before values are compared; the message names the worst element.
inline ::testing::AssertionResult close_to(const std::vector<float>& actual, const std::vector<double>& expected,
                                           Tolerance tolerance) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " values, expected " << expected.size();
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool same_kind = std::isnan(actual[i]) == std::isnan(expected[i]) &&
                           std::isinf(actual[i]) == std::isinf(expected[i]) &&
                           (!std::isinf(actual[i]) || (actual[i] > 0) == (expected[i] > 0));
    if (!same_kind)
      return ::testing::AssertionFailure() << fmt::format("[{}] is {}, expected {}", i, actual[i], expected[i]);
  }
  double worst_excess = 0.0;
  size_t worst = actual.size();
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i])) continue;
    const double allowed = tolerance.absolute + tolerance.relative * std::abs(expected[i]);
    const double excess = std::abs(static_cast<double>(actual[i]) - expected[i]) - allowed;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  if (worst == actual.size()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << fmt::format(
             "worst at [{}]: {} vs expected {}, error {:.3g}, allowed {:.3g}", worst, actual[worst], expected[worst],
             std::abs(static_cast<double>(actual[worst]) - expected[worst]),
             tolerance.absolute + tolerance.relative * std::abs(expected[worst]));
}

/// Of the whole, in 2-norms.
template <class Actual, class Expected>
double relative_error(const Actual& actual, const Expected& expected) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double want = expected[i], d = actual[i] - want;
    difference += d * d;
    norm += want * want;
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

}  // namespace kvant::test
