#pragma once

#include <vector>

#include "kvant/engine/engine.h"
#include "server/api/api_error.h"
#include "server/api/fields.h"

namespace kvant::server {

/// The 'messages' of a chat request. Content is a string, null, or parts of text, on every role.
ApiResult<std::vector<engine::ChatTurn>> read_messages(Fields& fields);

}  // namespace kvant::server
