#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/engine/engine.h"
#include "server/json.h"

namespace kvant::server {

/// The text of a token; one that is no whole UTF-8 becomes "bytes:\xf0\x9f".
std::string token_name(std::string_view bytes);

/// A log probability that JSON can hold: minus infinity and NaN become -9999.
double finite_logprob(float logprob);

/// logprobs.content of chat: one object per token.
Json chat_logprobs(const engine::Engine& engine, const std::vector<engine::TokenLogprobs>& tokens);

/// logprobs of completions: parallel arrays. `offset` counts the characters before the first token and is moved on.
Json completion_logprobs(const engine::Engine& engine, const std::vector<engine::TokenLogprobs>& tokens,
                         int64_t& offset);

}  // namespace kvant::server
