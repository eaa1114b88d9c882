#pragma once

#include <algorithm>
#include <cstdint>

namespace kvant::engine {

/// How many tokens to draft for one sequence: fewer when its drafts are refused, down to an occasional try, more when
/// they are taken.
class DraftDepth {
 public:
  explicit DraftDepth(int32_t most) : most_(most), depth_(most) {}

  /// For the next step; 0 = none.
  int32_t next() {
    if (depth_ > 0) return depth_;
    if (++idle_steps_ < kStepsBetweenTries) return 0;
    idle_steps_ = 0;
    return std::min(most_, 1);
  }
  void record(int32_t drafted, int32_t accepted) {
    if (drafted == 0) return;
    if (accepted == drafted)
      depth_ = std::min(most_, std::max(depth_, drafted) + 1);
    else if (2 * accepted < drafted)
      depth_ = std::max(0, std::min(depth_, drafted) - 1);
  }

 private:
  static constexpr int32_t kStepsBetweenTries = 16;
  int32_t most_;
  int32_t depth_;
  int32_t idle_steps_ = 0;
};

}  // namespace kvant::engine
