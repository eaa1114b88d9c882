#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/draw.h"
#include "ops/sampling.h"

namespace kvant::ops {

/// The logits that one sequence's bias and penalties change, kept up to date as the sequence grows.
class LogitChanges {
 public:
  /// Biases of one token add up.
  explicit LogitChanges(const SamplingParams& params);

  /// Whether any logit may ever change.
  bool any() const { return has_penalties_ || !changes_.empty(); }
  /// Takes note of tokens of the sequence, in order. `prompt_tokens` of the sequence do not count for presence and
  /// frequency.
  void append(std::span<const int32_t> tokens, int64_t prompt_tokens);
  /// Tokens noted.
  int64_t num_tokens() const { return num_tokens_; }
  std::span<const LogitChange> list() const { return changes_; }
  /// Appends the list as it would be after further tokens of an answer to `out`.
  void list_after(std::span<const int32_t> tokens, std::vector<LogitChange>& out) const;

 private:
  bool has_penalties_;
  int64_t num_tokens_ = 0;
  std::vector<LogitChange> changes_;
  std::unordered_map<int32_t, size_t> places_;  ///< Of tokens in `changes_`.
};

/// A logit after a change.
float changed_logit(float logit, const LogitChange& change, const Draw& draw);

}  // namespace kvant::ops
