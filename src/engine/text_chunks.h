#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace kvant::engine {

/// The ids of a text in chunks of `context` tokens, one after the other. Where the tokenizer asks for BOS each chunk
/// begins with it: models that were trained so are not themselves without.
std::vector<int32_t> encode_chunks(const Tokenizer& tokenizer, std::string_view text, int32_t context);

}  // namespace kvant::engine
