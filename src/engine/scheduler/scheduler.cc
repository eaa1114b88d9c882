#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace kvant::engine {
namespace {

/// Younger requests that may be looked at when the first in the queue finds no room, and how often it may be passed.
constexpr size_t kLookAhead = 8;
constexpr int32_t kMaxOvertaken = 32;

auto by_arrival(RequestId id) {
  return [id](const std::unique_ptr<ScheduledRequest>& other) { return other->id < id; };
}

template <class Requests>
auto find_request(Requests& requests, RequestId id) {
  const auto found = std::find_if_not(requests.begin(), requests.end(), by_arrival(id));
  return found != requests.end() && (*found)->id == id ? found : requests.end();
}

}  // namespace

Scheduler::Scheduler(Runner& runner, KvCacheSet& cache, const SchedulerOptions& options)
    : runner_(runner), cache_(cache), options_(options) {
  KVANT_CHECK(options.step_tokens >= 2 * options.max_sequences);
  const auto places = static_cast<size_t>(options.drafter != nullptr ? options.max_drafts : 0);
  counts_.drafted.assign(places, 0);
  counts_.accepted.assign(places, 0);
}

Status Scheduler::check(const TokenRequest& request) const {
  const ModelConfig& config = runner_.config();
  const int64_t prompt = std::ssize(request.prompt);
  if (prompt == 0) return {StatusCode::kInvalidArgument, "the prompt is empty; at least one token is needed"};
  if (request.max_tokens < 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("max_tokens {} makes no sense; at least 0 is needed", request.max_tokens)};
  }
  KVANT_RETURN_IF_ERROR(ops::validate(request.sampling));
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= config.vocabulary_size)
      return {StatusCode::kInvalidArgument,
              fmt::format("token id {} is outside the vocabulary of {}", token, config.vocabulary_size)};
  }
  const int32_t context = cache_.max_tokens();
  if (prompt >= context) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the prompt has {} tokens and the context holds {}, of which one is needed for the answer; "
                        "shorten the prompt{}",
                        prompt, context, context < config.context_limit ? " or raise the context" : "")};
  }
  const int64_t most = std::min<int64_t>(context, prompt + request.max_tokens);
  if (Status status = cache_.check_fits_alone(static_cast<int32_t>(most)); !status.ok()) {
    return {status.code(), fmt::format("{} (prompt {}, answer up to {}); ask for fewer tokens or raise --kv-memory",
                                       status.message(), prompt, most - prompt)};
  }
  return {};
}

void Scheduler::submit(RequestId id, TokenRequest request) {
  waiting_.push_back(std::make_unique<ScheduledRequest>(id, std::move(request),
                                                        options_.drafter != nullptr ? options_.max_drafts : 0));
}

void Scheduler::cancel(RequestId id) {
  for (Requests* requests : {&running_, &waiting_})
    if (const auto found = find_request(*requests, id); found != requests->end()) (*found)->cancelled = true;
}

void Scheduler::cancel_all() {
  for (Requests* requests : {&running_, &waiting_})
    for (const auto& request : *requests) request->cancelled = true;
  finish_cancelled();
}

int32_t Scheduler::computed_tokens(RequestId id) const {
  const auto found = find_request(running_, id);
  return found == running_.end() ? 0 : cache_.length((*found)->sequence);
}

EngineStats Scheduler::stats() const {
  EngineStats out = counts_;
  out.running = static_cast<int32_t>(running_.size());
  out.waiting = static_cast<int32_t>(waiting_.size());
  out.base_pages = cache_.base_pages();
  out.base_pages_used = cache_.base_pages_used();
  out.exact_pages = cache_.exact_pages();
  out.exact_pages_used = cache_.exact_pages_used();
  out.prefix_blocks = cache_.num_prefix_blocks();
  return out;
}

bool Scheduler::step() {
  finish_cancelled();
  admit();
  if (running_.empty()) return false;
  plan();
  if (planned_.empty()) {
    fail_stalled();
    return true;
  }
  ++counts_.steps;
  if (const Status status = run(); !status.ok()) {
    for (const Planned& row : planned_) finish(*row.request, FinishReason::kError, status);
    return true;
  }
  deliver();
  return true;
}

void Scheduler::finish_cancelled() {
  for (Requests* requests : {&running_, &waiting_}) {
    for (size_t i = 0; i < requests->size();) {
      if ((*requests)[i]->cancelled)
        finish(*(*requests)[i], FinishReason::kCancelled);
      else
        ++i;
    }
  }
}

void Scheduler::admit() {
  while (!waiting_.empty() && std::ssize(running_) < options_.max_sequences) {
    if (admit(0)) continue;
    // A long prompt that finds no room does not hold up short ones behind it, up to a point.
    ScheduledRequest& first = *waiting_.front();
    if (first.overtaken >= kMaxOvertaken) return;
    bool admitted = false;
    for (size_t i = 1; i < std::min(waiting_.size(), kLookAhead) && !admitted; ++i) admitted = admit(i);
    if (!admitted) return;
    ++first.overtaken;
  }
}

bool Scheduler::admit(size_t index) {
  ScheduledRequest& request = *waiting_[index];
  const Result<SequenceId> sequence = cache_.add_sequence();
  if (!sequence) return false;
  // Under exact edges an answer is no prefix: as a prompt it would be cached with other bytes.
  const std::span<const int32_t> tokens =
      cache_.has_exact_edges() ? std::span<const int32_t>(request.request.prompt) : request.tokens;
  // Log probabilities of a prompt come of computing all of it.
  const bool may_reuse = request.request.prompt_logprobs < 0;
  const int32_t reused = may_reuse ? cache_.reuse_prefix(*sequence, tokens, request.request.salt) : 0;
  // Room for all that has been asked to be read so far, or the pages would be taken away again soon.
  int64_t outstanding = request.num_tokens() + 1 - reused;
  for (const auto& other : running_) outstanding += other->num_tokens() - cache_.length(other->sequence);
  if (!running_.empty() && !cache_.make_token_room(outstanding)) {
    cache_.remove_sequence(*sequence);
    return false;
  }
  request.sequence = *sequence;
  if (request.result.preemptions == 0) {
    request.result.queue_seconds = request.end_stage();
    request.result.reused_tokens = std::min(reused, request.prompt_tokens());
    counts_.reused_tokens += request.result.reused_tokens;
  }
  request.most_computed = std::max(request.most_computed, reused);
  auto owned = std::move(waiting_[index]);
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
  running_.insert(std::find_if_not(running_.begin(), running_.end(), by_arrival(owned->id)), std::move(owned));
  return true;
}

void Scheduler::preempt(ScheduledRequest& request) {
  for (size_t i = 0; i < planned_.size(); ++i) {
    if (planned_[i].request != &request) continue;
    budget_ += planned_[i].num_tokens;
    planned_.erase(planned_.begin() + static_cast<std::ptrdiff_t>(i));
    step_rows_.erase(step_rows_.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  cache_.remove_sequence(request.sequence);
  request.sequence = -1;
  request.draft.clear();
  if (options_.drafter != nullptr) options_.drafter->forget(request.id);
  ++request.result.preemptions;
  ++counts_.preemptions;
  const auto place = find_request(running_, request.id);
  auto owned = std::move(*place);
  running_.erase(place);
  waiting_.insert(std::find_if_not(waiting_.begin(), waiting_.end(), by_arrival(owned->id)), std::move(owned));
}

void Scheduler::fail_stalled() {
  // Cannot happen while `check` guards the door: the oldest request takes pages from all others and fits alone.
  finish(*running_.back(), FinishReason::kError,
         {StatusCode::kResourceExhausted,
          fmt::format("no request could run: {} of {} base and {} of {} exact pages are in use",
                      cache_.base_pages_used(), cache_.base_pages(), cache_.exact_pages_used(), cache_.exact_pages())});
}

void Scheduler::finish(ScheduledRequest& request, FinishReason reason, Status status) {
  const bool running = request.sequence >= 0;
  if (running) cache_.remove_sequence(request.sequence);
  if (options_.drafter != nullptr) options_.drafter->forget(request.id);
  Requests& list = running ? running_ : waiting_;
  const auto place = find_request(list, request.id);
  const auto owned = std::move(*place);
  list.erase(place);
  ++counts_.finished;
  TokenResult& result = owned->result;
  (owned->answer_tokens() > 0 ? result.generation_seconds
   : running                  ? result.prompt_seconds
                              : result.queue_seconds) += owned->end_stage();
  result.reason = reason;
  result.status = std::move(status);
  if (owned->request.on_finish) owned->request.on_finish(result);
}

}  // namespace kvant::engine
