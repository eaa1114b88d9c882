#pragma once

#include <string_view>

#include "engine/tokenizer/jinja_value.h"
#include "kvant/core/status.h"

namespace kvant::engine::jinja {

/// JSON as a value of a template. All of its text is message text.
Result<Value> value_of_json(std::string_view text);

}  // namespace kvant::engine::jinja
