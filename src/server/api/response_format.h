#pragma once

#include <optional>

#include "kvant/engine/engine.h"
#include "server/api/api_error.h"
#include "server/api/fields.h"

namespace kvant::server {

/// The 'response_format' of a request; nothing when the answer is free.
ApiResult<std::optional<engine::AnswerShape>> read_response_format(Fields& fields);

}  // namespace kvant::server
