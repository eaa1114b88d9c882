#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kvant/core/status.h"
#include "ops/draw.h"
#include "ops/random_unit.h"

namespace kvant::ops {

struct LogitBias {
  int32_t token = 0;
  float bias = 0.0f;  ///< Minus infinity forbids the token.
};

/// How the next token is drawn. The steps apply in this order: bias, penalties, temperature, top-k, min-p, top-p.
struct SamplingParams {
  float temperature = 0.0f;         ///< 0 = the most likely token.
  int32_t top_k = 0;                ///< Keep this many most likely tokens; 0 = all.
  float top_p = 1.0f;               ///< Keep the fewest most likely tokens whose probabilities reach this sum; 1 = all.
  float min_p = 0.0f;               ///< Drop tokens below this fraction of the largest probability; 0 = none.
  float repetition_penalty = 1.0f;  ///< Of seen tokens, positive logits are divided and negative ones multiplied by it.
  float presence_penalty = 0.0f;    ///< Taken from the logits of generated tokens.
  float frequency_penalty = 0.0f;   ///< Likewise, times the occurrences.
  std::vector<LogitBias> logit_bias = {};
  uint64_t seed = 0;
};

/// The same for a device, without the biases, which are changes of logits.
Draw draw_of(const SamplingParams& params, uint64_t step, int32_t alternatives);

/// A seen token's logit after the penalties of SamplingParams or a Draw; `occurrences` are those in the answer.
template <class Penalties>
float penalised_logit(float logit, int32_t occurrences, const Penalties& penalties) {
  logit = logit > 0.0f ? logit / penalties.repetition_penalty : logit * penalties.repetition_penalty;
  if (occurrences == 0) return logit;
  return logit - (penalties.presence_penalty + penalties.frequency_penalty * static_cast<float>(occurrences));
}

/// What a sequence holds before the token to be drawn.
struct TokenHistory {
  std::span<const int32_t> tokens;  ///< Prompt, then answer; ids outside the vocabulary are ignored.
  int64_t prompt_tokens = 0;        ///< The others count for presence and frequency.
};

/// A token that may be drawn.
struct Candidate {
  float weight;  ///< Probability relative to that of the most likely token.
  int32_t token;
};

/// kInvalidArgument naming the first parameter out of its range.
Status validate(const SamplingParams& params);

/// Index of the largest logit, the lowest one on ties; NaN counts as minus infinity.
int32_t argmax(std::span<const float> logits);

/// out[i] = logits[i] - log(sum(exp(logits))). `out` may be `logits`.
void log_softmax(std::span<const float> logits, std::span<float> out);

/// The `count` most likely tokens of log probabilities, best first, the lower id on ties.
std::vector<int32_t> most_likely(std::span<const float> logprobs, int32_t count);

/// Draws tokens; keeps its buffers between calls. Give it parameters that `validate` accepts. The same parameters,
/// logits, history and step give the same token.
class Sampler {
 public:
  explicit Sampler(SamplingParams params) : params_(std::move(params)) {}

  const SamplingParams& params() const { return params_; }
  /// Whether the token follows from the logits without a draw.
  bool is_greedy() const { return params_.temperature == 0.0f || params_.top_k == 1; }

  /// Token for position `step` of the sequence. `logits` is changed by bias and penalties. Allocates only when the
  /// vocabulary is larger than any before.
  int32_t sample(std::span<float> logits, const TokenHistory& history, uint64_t step);

  /// What `sample` would draw from: tokens with weights above 0, in no order, valid until the next call. A single one
  /// when greedy.
  std::span<const Candidate> distribution(std::span<float> logits, const TokenHistory& history);

  /// A token of a distribution, as `sample` draws it.
  int32_t draw(std::span<const Candidate> candidates, uint64_t step) const {
    return pick(candidates, random_unit(params_.seed, step));
  }

  /// Exact rejection sampling of a draft token that was drawn from `proposal`: keeps it with probability
  /// min(1, p / q), else draws from what p has beyond q. The result is distributed as a token of `sample`, whatever the
  /// proposal; `accepted` says whether it is the draft as drawn. `step` must differ from that of the draft's own draw.
  int32_t verify(std::span<float> logits, const TokenHistory& history, int32_t draft,
                 std::span<const Candidate> proposal, uint64_t step, bool& accepted);

 private:
  void adjust(std::span<float> logits, const TokenHistory& history);
  void gather_candidates(std::span<const float> logits);
  void keep_top_p();
  static int32_t pick(std::span<const Candidate> candidates, double unit);

  SamplingParams params_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> rest_;
  std::vector<float> proposed_;  ///< [vocabulary], all 0 between calls.
  std::vector<int32_t> counts_;  ///< [vocabulary], all 0 between calls.
};

}  // namespace kvant::ops
