#pragma once

#include <string_view>

#include "kvant/engine/engine.h"

namespace kvant::engine {

/// What a chat template's source says about how its model calls tools.
ToolCallStyle tool_call_style(std::string_view chat_template);

}  // namespace kvant::engine
