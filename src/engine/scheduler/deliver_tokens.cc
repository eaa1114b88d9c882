#include <algorithm>

#include "engine/scheduler/scheduler.h"

namespace kvant::engine {

namespace {

/// Whether the next tokens follow from the logits as they are, so that these need not leave the device. On the CPU
/// there is nothing to gain for tokens that are not the most likely ones.
bool draws_on_device(const ScheduledRequest& request, bool cuda) {
  const ops::SamplingParams& params = request.sampler.params();
  return (cuda || request.sampler.is_greedy()) && params.repetition_penalty == 1.0f &&
         params.presence_penalty == 0.0f && params.frequency_penalty == 0.0f && params.logit_bias.empty() &&
         request.request.logprobs < 0 && !request.request.restrict_logits && request.draft.proposals.empty();
}

ops::Draw draw_of(const ScheduledRequest& request) {
  const ops::SamplingParams& params = request.sampler.params();
  return {.seed = params.seed,
          .step = static_cast<uint64_t>(request.num_tokens()),
          .temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p};
}

}  // namespace

Status Scheduler::run() {
  batch_.clear();
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
    if (rows > 0 && !row.scores && draws_on_device(request, runner_.stream().cuda != nullptr))
      request.drawn.resize(static_cast<size_t>(rows));
    else
      wanted += rows;
    if (row.phase != RowPhase::kDecode) counts_.prompt_tokens += row.num_tokens;
    batch_.push_back({.cache = &cache_,
                      .sequence = request.sequence,
                      .tokens = tokens,
                      .phase = row.phase,
                      .logits = logits,
                      .drawn = request.drawn.empty() ? nullptr : request.drawn.data(),
                      .draw = draw_of(request)});
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
    const int32_t token = is_drawn ? request.drawn[static_cast<size_t>(i)]
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
