#include "ops/logit_changes.h"

#include <algorithm>

namespace kvant::ops {

LogitChanges::LogitChanges(const SamplingParams& params)
    : has_penalties_(params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
                     params.frequency_penalty != 0.0f) {
  for (const LogitBias& item : params.logit_bias) {
    const auto [place, is_new] = places_.try_emplace(item.token, changes_.size());
    if (is_new) changes_.push_back({.token = item.token});
    changes_[place->second].bias += item.bias;
  }
}

void LogitChanges::append(std::span<const int32_t> tokens, int64_t prompt_tokens) {
  for (const int32_t token : tokens) {
    const bool in_answer = num_tokens_++ >= prompt_tokens;
    if (!has_penalties_) continue;
    const auto [place, is_new] = places_.try_emplace(token, changes_.size());
    if (is_new) changes_.push_back({.token = token});
    int32_t& occurrences = changes_[place->second].occurrences;
    occurrences = std::max(occurrences, 0) + (in_answer ? 1 : 0);
  }
}

void LogitChanges::list_after(std::span<const int32_t> tokens, std::vector<LogitChange>& out) const {
  const size_t first = out.size();
  out.insert(out.end(), changes_.begin(), changes_.end());
  if (!has_penalties_) return;
  for (const int32_t token : tokens) {
    const auto known = places_.find(token);
    // Few tokens follow, so those that are new are found by looking at all of them.
    auto place =
        out.begin() + static_cast<std::ptrdiff_t>(first + (known != places_.end() ? known->second : changes_.size()));
    if (known == places_.end())
      place = std::find_if(place, out.end(), [token](const LogitChange& change) { return change.token == token; });
    if (place == out.end()) place = out.insert(out.end(), {.token = token});
    place->occurrences = std::max(place->occurrences, 0) + 1;
  }
}

float changed_logit(float logit, const LogitChange& change, const Draw& draw) {
  logit += change.bias;
  return change.occurrences < 0 ? logit : penalised_logit(logit, change.occurrences, draw);
}

}  // namespace kvant::ops
