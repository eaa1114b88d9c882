#pragma once

#include <cstdint>

namespace kvant::ops {

/// How one token is drawn from logits, in a form that can be sent to a device. See SamplingParams.
struct Draw {
  uint64_t seed = 0;
  uint64_t step = 0;         ///< Position of the token in its sequence.
  float temperature = 0.0f;  ///< 0 = the most likely token.
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t first_change = 0;  ///< In a list of LogitChange that all rows share.
  int32_t num_changes = 0;
  int32_t alternatives = -1;  ///< Most likely tokens whose log probabilities are wanted; -1 = not even the drawn one's.
};

/// What a sequence's bias and penalties do to one logit before a token is drawn. A row names a token once.
struct LogitChange {
  int32_t token = 0;
  float bias = 0.0f;
  int32_t occurrences = -1;  ///< In the answer; 0 = in the prompt alone, -1 = in neither, so that no penalty applies.
};

inline constexpr int32_t kMaxAlternatives = 20;

/// Log probabilities by the logits as they were before any change. Those of the alternatives come best first, the lower
/// id on ties.
struct DrawnLogprobs {
  float drawn = 0.0f;  ///< Of the drawn token.
  int32_t tokens[kMaxAlternatives] = {};
  float logprobs[kMaxAlternatives] = {};
};

}  // namespace kvant::ops
