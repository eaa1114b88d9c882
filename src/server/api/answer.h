#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvant/engine/engine.h"
#include "server/api/answer_format.h"
#include "server/api/api_error.h"
#include "server/engine_host.h"
#include "server/http/http_types.h"

namespace kvant::server {

/// A request that has passed all checks of its own.
struct PreparedRequest {
  std::vector<engine::GenerateRequest> requests = {};  ///< One per choice; several prompts follow one another.
  size_t choices_per_prompt = 1;
  bool stream = false;
  bool include_usage = false;
  std::string prompt_field = {};  ///< For errors about the prompt.
  std::unique_ptr<AnswerFormat> format = {};
};

/// Runs the request and answers it, at once or as a stream of server-sent events. Ends early when the client goes away.
ApiResult<HttpResponse> answer(EngineHost& host, PreparedRequest prepared, const HttpRequest& http);

/// `wanted`, or less when the context ends before.
int32_t answer_tokens(const engine::EngineFacts& facts, size_t prompt_tokens, int32_t wanted);

/// Refuses a prompt that leaves no room for an answer.
ApiResult<bool> check_context(const engine::EngineFacts& facts, size_t prompt_tokens, const std::string& field);

}  // namespace kvant::server
