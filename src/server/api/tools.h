#pragma once

#include <optional>
#include <string>

#include "kvant/engine/engine.h"
#include "server/api/api_error.h"
#include "server/api/fields.h"

namespace kvant::server {

/// The 'tools' and 'tool_choice' of a chat request.
struct ToolFields {
  std::string definitions;                   ///< JSON array for the chat template; empty = none.
  bool may_call = false;                     ///< The answer is searched for calls.
  std::optional<engine::AnswerShape> shape;  ///< Of an answer that has to be a call.
};

ApiResult<ToolFields> read_tools(Fields& fields, engine::ToolCallStyle style);

}  // namespace kvant::server
