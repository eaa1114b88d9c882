#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/core/status.h"
#include "ops/sampling.h"

namespace kvant::engine {

/// Guessed continuation of a sequence.
struct Draft {
  std::vector<int32_t> tokens;
  /// What each token was drawn from. Empty = tokens follow from the sequence alone, without a draw.
  std::vector<std::vector<ops::Candidate>> proposals;

  void clear() {
    tokens.clear();
    proposals.clear();
  }
};

/// One sequence's wish for a draft.
struct DraftRequest {
  uint64_t sequence = 0;            ///< A name that stays with the sequence, for what drafters remember.
  std::span<const int32_t> tokens;  ///< Prompt and answer so far.
  int64_t prompt_tokens = 0;
  const ops::SamplingParams* sampling = nullptr;  ///< How the answer's tokens are drawn.
  int32_t max_tokens = 0;                         ///< At least 1.
  Draft* draft = nullptr;                         ///< Empty; receives max_tokens tokens at most.
};

/// Guesses continuations. A bad guess costs time, never correctness.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual Status propose(std::span<const DraftRequest> requests) = 0;
  /// The sequence has ended or lost its cache; unknown ones are ignored.
  virtual void forget(uint64_t sequence) = 0;
};

}  // namespace kvant::engine
