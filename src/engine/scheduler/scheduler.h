#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache_set.h"
#include "engine/runner/runner.h"
#include "engine/scheduler/token_request.h"
#include "engine/speculation/drafter.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

struct SchedulerOptions {
  int32_t max_sequences = 1;  ///< At most those of the cache.
  int32_t step_tokens = 512;  ///< At most those of the runner; at least 2 * max_sequences.
  Drafter* drafter = nullptr;
  int32_t max_drafts = 0;  ///< Per block.
};

/// Serves many requests over one runner and one cache: continuous batching, prompts in chunks beside decodes,
/// preemption when pages run out. Decides by phase and position, never by how many tokens a row happens to have.
///
/// Who goes first: arrival. Older requests take pages from younger ones, never the other way round, so the oldest one
/// always gets on. Decodes run in every step; what is left of the step's tokens is shared by the prompts evenly, so a
/// long one does not hold up short ones. Not thread-safe.
class Scheduler {
 public:
  /// Runner, cache and drafter must outlive the scheduler.
  Scheduler(Runner& runner, KvCacheSet& cache, const SchedulerOptions& options);

  /// Why a request can never run, if so. Looks at fixed sizes only: callable from any thread.
  Status check(const TokenRequest& request) const;
  /// Queues a request that `check` accepts. Ids rise from call to call.
  void submit(RequestId id, TokenRequest request);
  void cancel(RequestId id);
  /// Ends every request now.
  void cancel_all();

  /// One batch; false when there is nothing to do. Callbacks run inside.
  bool step();
  bool idle() const { return running_.empty() && waiting_.empty(); }
  /// Counts; the fields of pages too.
  EngineStats stats() const;
  /// Tokens of a request that are in the cache.
  int32_t computed_tokens(RequestId id) const;

 private:
  using Requests = std::vector<std::unique_ptr<ScheduledRequest>>;

  /// One row of the step being planned.
  struct Planned {
    ScheduledRequest* request = nullptr;
    RowPhase phase = RowPhase::kDecode;
    int32_t num_tokens = 0;
    bool samples = false;  ///< The row ends with the newest token: its logits give the next one.
    /// Rows of a prompt whose tokens' log probabilities are wanted: logits of every token.
    bool scores = false;
  };

  void finish_cancelled();
  void admit();
  bool admit(size_t waiting_index);
  void plan();
  void plan_decodes(std::span<ScheduledRequest* const> requests);
  void plan_prompts(std::vector<ScheduledRequest*>& requests);
  void ask_for_drafts(std::span<ScheduledRequest* const> requests);
  /// Adds a row, taking pages from younger requests if need be.
  bool add_row(const Planned& row, bool may_preempt);
  void preempt(ScheduledRequest& request);
  Status run();
  /// Whether the next tokens of a row can be drawn where the logits are; makes ready what that takes.
  bool prepare_draws(ScheduledRequest& request, int64_t num_rows);
  void deliver();
  /// These two return the logits behind those they have used.
  float* sample(ScheduledRequest& request, int32_t num_drafts, float* logits);
  float* score(const Planned& row, float* logits);
  void set_logprobs(std::span<const float> logprobs, int32_t token, int32_t alternatives);
  void set_logprobs(const ops::DrawnLogprobs& drawn, int32_t token, int32_t alternatives);
  int32_t next_token(ScheduledRequest& request, int32_t draft_index, std::span<float> logits);
  /// False when too many steps brought nothing new.
  bool note_progress();
  void fail_stalled();
  /// Leaves the running or waiting list; the callback runs last.
  void finish(ScheduledRequest& request, FinishReason reason, Status status = {});

  Runner& runner_;
  KvCacheSet& cache_;
  SchedulerOptions options_;
  Requests running_;  ///< In order of arrival.
  Requests waiting_;  ///< Likewise.
  EngineStats counts_;
  int32_t steps_without_progress_ = 0;
  // One step.
  int32_t budget_ = 0;
  int64_t changes_left_ = 0;  ///< Logits that may still be changed where they are.
  std::vector<Planned> planned_;
  std::vector<StepRow> step_rows_;
  std::vector<BatchRow> batch_;
  std::vector<ScheduledRequest*> decodes_, prompts_;
  std::vector<DraftRequest> draft_requests_;
  std::vector<std::pair<ScheduledRequest*, FinishReason>> finished_;
  std::vector<float> logits_;
  std::vector<float> logprobs_buffer_;
  TokenLogprobs logprobs_;
};

}  // namespace kvant::engine
