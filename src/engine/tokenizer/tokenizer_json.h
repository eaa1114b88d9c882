#pragma once

#include <string_view>

#include <fmt/format.h>

#include "engine/loader/json_object.h"
#include "engine/tokenizer/tokenizer_data.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// Reads tokenizer.json: vocabulary, merges, added tokens, and the steps that make symbols of text. A model, step or
/// option that kvant does not have is refused by name.
Result<TokenizerData> read_tokenizer_json(const JsonObject& json);

/// Sequences of steps within sequences: deeper ones are refused.
inline constexpr int kDeepestSequence = 4;

/// A refusal of `what` in a part of tokenizer.json.
inline Status unsupported(const JsonObject& json, std::string_view what) {
  return {StatusCode::kUnsupported, fmt::format("{}: {} is not supported", json.name(), what)};
}

/// "normalizer" and "pre_tokenizer" of tokenizer.json; sets `byte_level`.
Status read_text_steps(const JsonObject& json, TokenizerRules& rules);

}  // namespace kvant::engine
