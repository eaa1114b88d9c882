#include <algorithm>

#include "engine/scheduler/scheduler.h"

namespace kvant::engine {
namespace {

/// Logits of every row are large: a prompt with log probabilities is read in small chunks.
constexpr int32_t kScoredTokens = 64;

}  // namespace

void Scheduler::plan() {
  planned_.clear();
  step_rows_.clear();
  decodes_.clear();
  prompts_.clear();
  budget_ = options_.step_tokens;
  for (const auto& request : running_) {
    const int32_t length = cache_.length(request->sequence);
    switch (attn::phase_of(request->prompt_tokens(), length)) {
      case RowPhase::kDecode: decodes_.push_back(request.get()); break;
      case RowPhase::kExtend:
      case RowPhase::kPrefill: prompts_.push_back(request.get()); break;
    }
  }
  if (options_.drafter != nullptr) ask_for_drafts(decodes_);
  plan_decodes(decodes_);
  plan_prompts(prompts_);
}

void Scheduler::ask_for_drafts(std::span<ScheduledRequest* const> requests) {
  draft_requests_.clear();
  // Every other decode and the prompts must find room in the step too.
  const int32_t share = options_.step_tokens / (2 * std::max<int32_t>(1, static_cast<int32_t>(requests.size())));
  for (ScheduledRequest* request : requests) {
    request->draft.clear();
    if (cache_.length(request->sequence) + 1 < request->num_tokens()) continue;  // Tokens are still to be replayed.
    const int32_t wanted = std::min(request->request.max_tokens - request->answer_tokens() - 1, share - 1);
    const int32_t room = std::min({cache_.tokens_to_ageing_point(request->sequence) - 1,
                                   cache_.max_tokens() - request->num_tokens() - 1, wanted});
    if (room < 1) continue;
    const int32_t depth = std::min(request->depth.next(), room);
    if (depth < 1) continue;
    draft_requests_.push_back({.sequence = request->id,
                               .tokens = request->tokens,
                               .prompt_tokens = request->prompt_tokens(),
                               .sampling = &request->request.sampling,
                               .max_tokens = depth,
                               .draft = &request->draft});
  }
  // Drafts are a help only: without them the step is a plain one.
  if (!draft_requests_.empty() && !options_.drafter->propose(draft_requests_).ok())
    for (const DraftRequest& asked : draft_requests_) asked.draft->clear();
}

void Scheduler::plan_decodes(std::span<ScheduledRequest* const> requests) {
  for (ScheduledRequest* request : requests) {
    if (request->sequence < 0) continue;  // Preempted for an older one.
    const int32_t length = cache_.length(request->sequence);
    // One new token, or after a preemption the answer so far: rows of one block see one state of the cache.
    const int32_t left = request->num_tokens() - length;
    const int32_t tokens = std::min({left, cache_.tokens_to_ageing_point(request->sequence), budget_});
    if (tokens < 1) continue;
    Planned row{.request = request, .phase = RowPhase::kDecode, .num_tokens = tokens, .samples = tokens == left};
    const auto num_drafts = static_cast<int32_t>(request->draft.tokens.size());
    if (row.samples && num_drafts > 0 && tokens + num_drafts <= budget_) {
      row.num_tokens += num_drafts;
      if (add_row(row, false)) continue;
      row.num_tokens -= num_drafts;
    }
    request->draft.clear();
    add_row(row, true);
  }
}

void Scheduler::plan_prompts(std::vector<ScheduledRequest*>& requests) {
  const auto left = [&](const ScheduledRequest* request) {
    return request->prompt_tokens() - cache_.length(request->sequence);
  };
  std::erase_if(requests, [](const ScheduledRequest* request) { return request->sequence < 0; });
  // Even shares; what short prompts leave goes to longer ones.
  std::stable_sort(requests.begin(), requests.end(), [&](auto* a, auto* b) { return left(a) < left(b); });
  for (size_t i = 0; i < requests.size() && budget_ > 0; ++i) {
    ScheduledRequest* request = requests[i];
    if (request->sequence < 0) continue;
    const int32_t share = std::max(1, budget_ / static_cast<int32_t>(requests.size() - i));
    const int32_t length = cache_.length(request->sequence);
    const bool scores = request->request.prompt_logprobs >= 0;
    const int32_t tokens = std::min(
        {left(request), share, cache_.tokens_to_grid_point(length), scores ? kScoredTokens : options_.step_tokens});
    add_row({.request = request,
             .phase = attn::phase_of(request->prompt_tokens(), length),
             .num_tokens = tokens,
             .samples = length + tokens == request->num_tokens(),
             .scores = scores},
            true);
  }
}

bool Scheduler::add_row(const Planned& row, bool may_preempt) {
  planned_.push_back(row);
  step_rows_.push_back({.sequence = row.request->sequence, .num_tokens = row.num_tokens, .phase = row.phase});
  budget_ -= row.num_tokens;
  while (!cache_.make_room(step_rows_)) {
    ScheduledRequest* youngest = running_.back().get();
    if (may_preempt && youngest != row.request) {
      preempt(*youngest);
      continue;
    }
    planned_.pop_back();
    step_rows_.pop_back();
    budget_ += row.num_tokens;
    return false;
  }
  return true;
}

}  // namespace kvant::engine
