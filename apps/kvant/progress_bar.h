#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace kvant::cli {

/// A progress bar on stderr, drawn only when that is a terminal; erased when a step is done or the bar dies.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `done` of `total` units of a step; total 0 = unknown. Redraws at most ten times a second.
  void update(std::string_view step, int64_t done, int64_t total);
  void erase();

 private:
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_;
};

}  // namespace kvant::cli
