#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache_set.h"
#include "engine/speculation/draft_depth.h"
#include "engine/speculation/drafter.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"
#include "ops/logit_changes.h"
#include "ops/sampling.h"

namespace kvant::engine {

/// How a request ended, in tokens.
struct TokenResult {
  FinishReason reason = FinishReason::kStop;
  Status status;
  int32_t reused_tokens = 0;
  int32_t preemptions = 0;
  int32_t drafted_tokens = 0;
  int32_t accepted_tokens = 0;
  double queue_seconds = 0.0;
  double prompt_seconds = 0.0;
  double generation_seconds = 0.0;
};

/// What the scheduler serves: a prompt to be continued token by token. Text is the business of callers.
struct TokenRequest {
  std::vector<int32_t> prompt;
  ops::SamplingParams sampling = {};
  int32_t max_tokens = 1;
  std::vector<int32_t> end_tokens = {};  ///< Each ends the answer and is not part of it.
  int32_t logprobs = -1;                 ///< -1 = none, else how many alternatives.
  int32_t prompt_logprobs = -1;
  std::string salt = {};
  /// Called with the logits before each token of the answer is drawn; may forbid tokens. May be empty.
  std::function<void(std::span<float> logits)> restrict_logits = {};
  /// Takes a token of the answer; false = it was the last one wanted. `logprobs` is null unless asked for.
  std::function<bool(int32_t token, const TokenLogprobs* logprobs)> on_token = {};
  /// Log probabilities of the prompt token at a position. After a preemption some come again.
  std::function<void(int32_t position, const TokenLogprobs& logprobs)> on_prompt_token = {};
  std::function<void(const TokenResult& result)> on_finish = {};
};

/// A request while the scheduler has it.
struct ScheduledRequest {
  using Clock = std::chrono::steady_clock;

  ScheduledRequest(RequestId request_id, TokenRequest token_request, int32_t most_drafts)
      : id(request_id),
        request(std::move(token_request)),
        tokens(request.prompt),
        sampler(request.sampling),
        changes(request.sampling),
        depth(most_drafts),
        since(Clock::now()) {}

  RequestId id;  ///< Also the order of arrival.
  TokenRequest request;
  std::vector<int32_t> tokens;  ///< Prompt, then answer. The newest one is not in the cache yet.
  SequenceId sequence = -1;     ///< While running.
  ops::Sampler sampler;
  ops::LogitChanges changes;  ///< Of the tokens up to the last step whose tokens were drawn where the logits are.
  TokenResult result;
  DraftDepth depth;
  Draft draft;
  std::vector<int32_t> block;  ///< The rows of a step with drafts.
  std::vector<int32_t> drawn;  ///< Tokens of the step's rows, where these are drawn where the logits are,
  std::vector<ops::DrawnLogprobs> drawn_logprobs;              ///< their log probabilities, if wanted,
  std::vector<std::span<const ops::LogitChange>> row_changes;  ///< and what is changed before; empty = nothing.
  std::vector<ops::LogitChange> changes_storage;               ///< Of rows behind drafts.
  int32_t most_computed = 0;  ///< Tokens ever in the cache at once: beyond them a step makes progress.
  int32_t overtaken = 0;      ///< Times a younger request was admitted before it.
  bool cancelled = false;
  Clock::time_point since;  ///< Start of the present stage: waiting, prompt, answer.

  int32_t prompt_tokens() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t answer_tokens() const { return num_tokens() - prompt_tokens(); }
  double end_stage() {
    const Clock::time_point now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(since, now)).count();
  }
};

}  // namespace kvant::engine
