#include "engine/speculation/ngram_drafter.h"

#include <algorithm>

namespace kvant::engine {
namespace {

/// A longer match says little more; a single token says too little.
constexpr std::ptrdiff_t kLongestMatch = 5;
constexpr std::ptrdiff_t kShortestMatch = 2;

}  // namespace

std::span<const int32_t> look_up_continuation(std::span<const int32_t> tokens, int32_t count) {
  const auto size = std::ssize(tokens);
  std::ptrdiff_t best_match = kShortestMatch - 1, best_end = 0;
  // `end` is where an earlier occurrence ends and its continuation begins.
  for (std::ptrdiff_t end = size - 1; end >= kShortestMatch && best_match < kLongestMatch; --end) {
    std::ptrdiff_t match = 0;
    while (match < std::min(end, kLongestMatch) &&
           tokens[static_cast<size_t>(end - 1 - match)] == tokens[static_cast<size_t>(size - 1 - match)])
      ++match;
    if (match <= best_match) continue;
    best_match = match;
    best_end = end;
  }
  if (best_end == 0) return {};
  return tokens.subspan(static_cast<size_t>(best_end),
                        static_cast<size_t>(std::min<std::ptrdiff_t>(count, size - best_end)));
}

Status NgramDrafter::propose(std::span<const DraftRequest> requests) {
  for (const DraftRequest& request : requests) {
    const auto found = look_up_continuation(request.tokens, request.max_tokens);
    request.draft->tokens.assign(found.begin(), found.end());
  }
  return {};
}

}  // namespace kvant::engine
