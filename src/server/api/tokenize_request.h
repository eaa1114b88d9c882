#pragma once

#include "server/api/completion_request.h"

namespace kvant::server {

/// POST /tokenize: {"prompt": TEXT} or {"messages": [...]} to {"tokens": [...], "count": N, "max_model_len": N}. Text
/// gets a BOS where the model wants one, unless "add_special_tokens" is false.
ApiResult<Json> tokenize(const Json& body, const RequestContext& context, std::vector<std::string>& ignored);

/// POST /detokenize: {"tokens": [...]} to {"prompt": TEXT}.
ApiResult<Json> detokenize(const Json& body, const RequestContext& context, std::vector<std::string>& ignored);

}  // namespace kvant::server
