#pragma once

#include <string>
#include <vector>

#include "kvant/engine/engine.h"
#include "server/api/answer.h"
#include "server/api/api_error.h"
#include "server/json.h"

namespace kvant::server {

/// What a request is served with besides its own fields.
struct RequestContext {
  const engine::Engine& engine;
  std::string model_name;
  std::string cache_salt;
};

/// The body of POST /v1/completions. `ignored` receives the fields that mean nothing here.
ApiResult<PreparedRequest> read_completion_request(const Json& body, const RequestContext& context,
                                                   std::vector<std::string>& ignored);

}  // namespace kvant::server
