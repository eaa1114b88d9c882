#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/api_error.h"
#include "server/json.h"

namespace kvant::server {

/// An array of token ids, each below `vocabulary`.
ApiResult<std::vector<int32_t>> read_token_ids(const Json& list, const std::string& field, int32_t vocabulary);

}  // namespace kvant::server
