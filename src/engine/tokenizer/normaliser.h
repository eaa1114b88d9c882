#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/tokenizer/text_rules.h"

namespace kvant::engine {

/// Applies the steps in order to valid UTF-8. `at_start`: nothing came before this text.
std::string normalise(std::string_view text, std::span<const NormaliseStep> steps, bool at_start);

/// Every `from` by `to`; an empty `from` stands nowhere.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// Bytes of Unicode white space that a text begins and ends with.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

}  // namespace kvant::engine
