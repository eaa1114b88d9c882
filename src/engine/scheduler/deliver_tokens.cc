#include <algorithm>
#include <iterator>

#include "engine/scheduler/scheduler.h"
#include "ops/decoder_ops.h"

namespace kvant::engine {

bool Scheduler::prepare_draws(ScheduledRequest& request, int64_t num_rows) {
  if (num_rows == 0 || request.request.restrict_logits || !request.draft.proposals.empty()) return false;
  const bool changes = request.changes.any(), wants_logprobs = request.request.logprobs >= 0;
  // On the CPU logits have no way to go, and there is nothing to gain but for the most likely token as it is.
  if (runner_.stream().cuda == nullptr && (changes || wants_logprobs || !request.sampler.is_greedy())) return false;
  if (request.request.logprobs > ops::kMaxAlternatives) return false;
  if (changes) {
    const auto noted = static_cast<size_t>(request.changes.num_tokens());
    request.changes.append(std::span(request.tokens).subspan(noted), request.prompt_tokens());
    // Row i comes after i drafts.
    const std::span<const int32_t> drafts = request.draft.tokens;
    const auto most = num_rows * (std::ssize(request.changes.list()) + std::ssize(drafts));
    if (most > changes_left_) return false;
    changes_left_ -= most;
    request.changes_storage.clear();
    request.changes_storage.reserve(static_cast<size_t>(most));
    request.row_changes.assign(1, request.changes.list());
    for (size_t i = 1; i < static_cast<size_t>(num_rows); ++i) {
      const size_t first = request.changes_storage.size();
      request.changes.list_after(drafts.first(i), request.changes_storage);
      request.row_changes.push_back(std::span(request.changes_storage).subspan(first));
    }
  }
  if (wants_logprobs) request.drawn_logprobs.resize(static_cast<size_t>(num_rows));
  request.drawn.resize(static_cast<size_t>(num_rows));
  return true;
}

Status Scheduler::run() {
  batch_.clear();
  changes_left_ = ops::kMaxLogitChanges;
  int64_t wanted = 0;
  for (const Planned& row : planned_) {
    ScheduledRequest& request = *row.request;
    const int32_t length = cache_.length(request.sequence);
    std::span<const int32_t> tokens = request.tokens;
    tokens = tokens.subspan(static_cast<size_t>(length),
                            std::min(static_cast<size_t>(row.num_tokens), tokens.size() - static_cast<size_t>(length)));
    LogitsWanted logits = row.samples ? LogitsWanted::kLast : LogitsWanted::kNone;
    if (row.scores) logits = LogitsWanted::kAll;
    if (row.phase == RowPhase::kDecode && !request.draft.tokens.empty()) {
      request.block.assign(tokens.begin(), tokens.end());
      request.block.insert(request.block.end(), request.draft.tokens.begin(), request.draft.tokens.end());
      tokens = request.block;
      logits = LogitsWanted::kAll;
    }
    int64_t rows = 0;
    switch (logits) {
      case LogitsWanted::kNone: break;
      case LogitsWanted::kLast: rows = 1; break;
      case LogitsWanted::kAll: rows = std::ssize(tokens); break;
    }
    request.drawn.clear();
    request.drawn_logprobs.clear();
    request.row_changes.clear();
    if (row.scores || !prepare_draws(request, rows)) wanted += rows;
    if (row.phase != RowPhase::kDecode) counts_.prompt_tokens += row.num_tokens;
    batch_.push_back({.cache = &cache_,
                      .sequence = request.sequence,
                      .tokens = tokens,
                      .phase = row.phase,
                      .logits = logits,
                      .drawn = request.drawn.empty() ? nullptr : request.drawn.data(),
                      .draw = ops::draw_of(request.sampler.params(), static_cast<uint64_t>(request.num_tokens()),
                                           request.request.logprobs),
                      .changes = request.row_changes,
                      .logprobs = request.drawn_logprobs.empty() ? nullptr : request.drawn_logprobs.data()});
  }
  const auto floats = static_cast<size_t>(wanted * runner_.config().vocabulary_size);
  if (logits_.size() < floats) logits_.resize(floats);
  return runner_.forward(batch_, logits_.data());
}

void Scheduler::deliver() {
  finished_.clear();
  float* logits = logits_.data();
  for (const Planned& row : planned_) {
    ScheduledRequest& request = *row.request;
    if (row.scores) logits = score(row, logits);
    if (row.samples) logits = sample(request, static_cast<int32_t>(request.draft.tokens.size()), logits);
    cache_.publish_prefix(request.sequence, request.tokens, request.request.salt);
  }
  const bool stalled = !note_progress();
  for (const auto& [request, reason] : finished_) finish(*request, reason);
  if (stalled && !running_.empty()) {
    finish(*running_.back(), FinishReason::kError,
           {StatusCode::kResourceExhausted, "the scheduler made no progress: too little KV memory for the requests"});
  }
}

float* Scheduler::sample(ScheduledRequest& request, int32_t num_drafts, float* logits) {
  const int64_t vocabulary = runner_.config().vocabulary_size;
  const auto finish_with = [&](FinishReason reason) { finished_.emplace_back(&request, reason); };
  const bool is_drawn = !request.drawn.empty();
  if (request.request.max_tokens == 0) {
    finish_with(FinishReason::kLength);
    return is_drawn ? logits : logits + vocabulary;
  }
  int32_t num_accepted = 0;
  bool ended = false;
  for (int32_t i = 0; i <= num_drafts; ++i) {
    const auto row = static_cast<size_t>(i);
    if (is_drawn && !request.drawn_logprobs.empty())
      set_logprobs(request.drawn_logprobs[row], request.drawn[row], request.request.logprobs);
    const int32_t token = is_drawn ? request.drawn[row]
                                   : next_token(request, i, {logits + i * vocabulary, static_cast<size_t>(vocabulary)});
    if (i < num_drafts && token == request.draft.tokens[static_cast<size_t>(i)]) ++num_accepted;
    const auto& ends = request.request.end_tokens;
    ended = std::find(ends.begin(), ends.end(), token) != ends.end();
    if (ended) {
      finish_with(FinishReason::kStop);
      break;
    }
    if (request.answer_tokens() == 0) request.result.prompt_seconds = request.end_stage();
    request.tokens.push_back(token);
    ++counts_.generated_tokens;
    const TokenLogprobs* logprobs = request.request.logprobs >= 0 ? &logprobs_ : nullptr;
    if (request.request.on_token && !request.request.on_token(token, logprobs)) {
      finish_with(FinishReason::kStop);
      break;
    }
    if (request.answer_tokens() >= request.request.max_tokens || request.num_tokens() >= cache_.max_tokens()) {
      finish_with(FinishReason::kLength);
      break;
    }
    if (request.cancelled || i == num_drafts || token != request.draft.tokens[static_cast<size_t>(i)]) break;
  }
  if (num_drafts > 0) {
    // Drafts that were refused leave the cache, and accepted ones after which the answer ended.
    cache_.rollback(request.sequence, request.num_tokens() - (ended ? 0 : 1));
    request.depth.record(num_drafts, num_accepted);
    request.result.drafted_tokens += num_drafts;
    request.result.accepted_tokens += num_accepted;
    for (int32_t i = 0; i < num_drafts; ++i) {
      ++counts_.drafted[static_cast<size_t>(i)];
      counts_.accepted[static_cast<size_t>(i)] += i < num_accepted ? 1 : 0;
    }
  }
  return is_drawn ? logits : logits + (num_drafts + 1) * vocabulary;
}

int32_t Scheduler::next_token(ScheduledRequest& request, int32_t draft_index, std::span<float> logits) {
  const int32_t alternatives = request.request.logprobs;
  if (alternatives >= 0) {
    logprobs_buffer_.resize(logits.size());
    ops::log_softmax(logits, logprobs_buffer_);
  }
  if (request.request.restrict_logits) request.request.restrict_logits(logits);
  const ops::TokenHistory history{.tokens = request.tokens, .prompt_tokens = request.prompt_tokens()};
  const auto step = static_cast<uint64_t>(request.num_tokens());
  const auto index = static_cast<size_t>(draft_index);
  int32_t token = 0;
  if (index < request.draft.proposals.size()) {
    bool accepted = false;
    token = request.sampler.verify(logits, history, request.draft.tokens[index], request.draft.proposals[index], step,
                                   accepted);
  } else {
    // A draft that no draw decided: taking it whenever the plain draw gives it is exact too, and gives the very tokens
    // that a run without drafts would give.
    token = request.sampler.sample(logits, history, step);
  }
  if (alternatives >= 0) set_logprobs(logprobs_buffer_, token, alternatives);
  return token;
}

void Scheduler::set_logprobs(std::span<const float> logprobs, int32_t token, int32_t alternatives) {
  const auto logprob = [&](int32_t id) {
    return TokenLogprob{.token = id, .logprob = logprobs[static_cast<size_t>(id)]};
  };
  logprobs_.chosen = logprob(token);
  logprobs_.top.clear();
  for (const int32_t id : ops::most_likely(logprobs, alternatives)) logprobs_.top.push_back(logprob(id));
}

void Scheduler::set_logprobs(const ops::DrawnLogprobs& drawn, int32_t token, int32_t alternatives) {
  logprobs_.chosen = {.token = token, .logprob = drawn.drawn};
  logprobs_.top.clear();
  for (int32_t i = 0; i < std::min(alternatives, runner_.config().vocabulary_size); ++i)
    logprobs_.top.push_back({.token = drawn.tokens[i], .logprob = drawn.logprobs[i]});
}

float* Scheduler::score(const Planned& row, float* logits) {
  ScheduledRequest& request = *row.request;
  const auto vocabulary = static_cast<size_t>(runner_.config().vocabulary_size);
  const int32_t end = cache_.length(request.sequence);
  logprobs_buffer_.resize(vocabulary);
  for (int32_t position = end - row.num_tokens; position < end; ++position) {
    // The logits at a position speak of the token after it.
    if (position + 1 < request.prompt_tokens() && request.request.on_prompt_token) {
      ops::log_softmax({logits, vocabulary}, logprobs_buffer_);
      set_logprobs(logprobs_buffer_, request.tokens[static_cast<size_t>(position) + 1],
                   request.request.prompt_logprobs);
      request.request.on_prompt_token(position + 1, logprobs_);
    }
    // The last ones are for sampling.
    if (position + 1 < end || !row.samples) logits += vocabulary;
  }
  return logits;
}

bool Scheduler::note_progress() {
  bool progress = false;
  for (const Planned& row : planned_) {
    ScheduledRequest& request = *row.request;
    const int32_t length = cache_.length(request.sequence);
    progress = progress || length > request.most_computed;
    request.most_computed = std::max(request.most_computed, length);
  }
  // Computing again what preemption threw away takes a context's worth of steps at most; more than that is a loop.
  steps_without_progress_ = progress ? 0 : steps_without_progress_ + 1;
  if (steps_without_progress_ <= cache_.max_tokens()) return true;
  steps_without_progress_ = 0;
  return false;
}

}  // namespace kvant::engine
