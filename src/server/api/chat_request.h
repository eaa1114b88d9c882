#pragma once

#include <string>
#include <vector>

#include "server/api/completion_request.h"

namespace kvant::server {

/// The body of POST /v1/chat/completions.
ApiResult<PreparedRequest> read_chat_request(const Json& body, const RequestContext& context,
                                             std::vector<std::string>& ignored);

}  // namespace kvant::server
