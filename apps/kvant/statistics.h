#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace kvant::cli {

/// The value that `share` of the others, in [0, 1), lie below. `values` must not be empty.
inline double quantile(std::vector<double> values, double share) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size()) * share);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

/// Middle value (the upper one of two). `values` must not be empty.
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace kvant::cli
