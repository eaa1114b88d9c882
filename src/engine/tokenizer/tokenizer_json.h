#pragma once

#include "engine/loader/json_object.h"
#include "engine/tokenizer/tokenizer_data.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// Reads tokenizer.json: vocabulary, merges, added tokens, and the steps that make symbols of text. A model, step or
/// option that kvant does not have is refused by name.
Result<TokenizerData> read_tokenizer_json(const JsonObject& json);

/// "normalizer" and "pre_tokenizer" of tokenizer.json; sets `byte_level`.
Status read_text_steps(const JsonObject& json, TokenizerRules& rules);

}  // namespace kvant::engine
