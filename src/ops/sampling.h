#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/core/status.h"

namespace kvant::ops {

/// How the next token is drawn. The steps apply in this order: repetition penalty, temperature, top-k, min-p, top-p.
struct SamplingParams {
  float temperature = 0.0f;         ///< 0 = the most likely token.
  int32_t top_k = 0;                ///< Keep this many most likely tokens; 0 = all.
  float top_p = 1.0f;               ///< Keep the fewest most likely tokens whose probabilities reach this sum; 1 = all.
  float min_p = 0.0f;               ///< Drop tokens below this fraction of the largest probability; 0 = none.
  float repetition_penalty = 1.0f;  ///< Of seen tokens, positive logits are divided and negative ones multiplied by it.
  uint64_t seed = 0;
};

/// kInvalidArgument naming the first parameter out of its range.
Status validate(const SamplingParams& params);

/// Uniform number in [0, 1), a pure function of its arguments: the same draw whatever else the process does.
double random_unit(uint64_t seed, uint64_t step);

/// Index of the largest logit, the lowest one on ties; NaN counts as minus infinity.
int32_t argmax(std::span<const float> logits);

/// out[i] = logits[i] - log(sum(exp(logits))). `out` may be `logits`.
void log_softmax(std::span<const float> logits, std::span<float> out);

/// Draws tokens; keeps its buffers between calls. Give it parameters that `validate` accepts.
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params) : params_(params) {}

  /// Token for position `step` of the sequence. `logits` is changed by the repetition penalty; `seen` holds the tokens
  /// that it concerns, repeats allowed. Allocates only when the vocabulary is larger than any before.
  int32_t sample(std::span<float> logits, std::span<const int32_t> seen, uint64_t step);

 private:
  struct Candidate {
    float weight;  // Probability relative to that of the most likely token.
    int32_t token;
  };

  void penalise(std::span<float> logits, std::span<const int32_t> seen);
  void gather_candidates(std::span<const float> logits);
  void keep_top_p();

  SamplingParams params_;
  std::vector<Candidate> candidates_;
  std::vector<bool> penalised_;
};

}  // namespace kvant::ops
