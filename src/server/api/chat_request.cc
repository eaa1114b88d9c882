#include "server/api/chat_request.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/api/chat_format.h"
#include "server/api/chat_messages.h"
#include "server/api/fields.h"
#include "server/api/sampling_fields.h"
#include "server/api/tools.h"

namespace kvant::server {
namespace {

constexpr int64_t kMaxLogprobs = 20;

ApiResult<int32_t> read_logprobs(Fields& fields) {
  KVANT_API_ASSIGN(const auto wanted, fields.boolean("logprobs"));
  KVANT_API_ASSIGN(const auto top, fields.integer("top_logprobs", 0, kMaxLogprobs));
  if (top && *top > 0 && !wanted.value_or(false))
    return refuse("top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
  return wanted.value_or(false) ? static_cast<int32_t>(top.value_or(0)) : -1;
}

}  // namespace

ApiResult<PreparedRequest> read_chat_request(const Json& body, const RequestContext& context,
                                             std::vector<std::string>& ignored) {
  const engine::EngineFacts& facts = context.engine.facts();
  Fields fields(body);
  KVANT_API_ASSIGN(CommonFields common, read_common_fields(fields, facts));
  KVANT_API_ASSIGN(common.request.logprobs, read_logprobs(fields));
  KVANT_API_ASSIGN(const std::vector<engine::ChatTurn> turns, read_messages(fields));
  KVANT_API_ASSIGN(ToolFields tools, read_tools(fields, facts.tool_calls));
  if (tools.shape && common.request.shape)
    return refuse("response_format", "'response_format' and a required tool call exclude each other");
  if (tools.shape) common.request.shape = std::move(tools.shape);
  auto prompt = context.engine.encode_chat(turns, tools.definitions);
  if (!prompt) return refuse(to_api_error(prompt.error(), "messages"));
  if (prompt->empty()) return refuse("messages", "the messages give an empty prompt; at least one token is needed");
  KVANT_API_ASSIGN([[maybe_unused]] const bool fits, check_context(facts, prompt->size(), "messages"));

  common.request.max_tokens = answer_tokens(facts, prompt->size(), common.max_tokens.value_or(facts.context));
  common.request.prompt = *std::move(prompt);
  common.request.cache_salt = context.cache_salt;
  PreparedRequest out{.choices_per_prompt = static_cast<size_t>(common.choices),
                      .stream = common.stream,
                      .include_usage = common.include_usage,
                      .prompt_field = "messages"};
  for (int32_t i = 0; i < common.choices; ++i) {
    engine::GenerateRequest& request = out.requests.emplace_back(common.request);
    request.sampling.seed += static_cast<uint64_t>(i);
  }
  out.format = std::make_unique<ChatFormat>(context.engine, AnswerIdentity::make("chatcmpl", context.model_name),
                                            common.request.logprobs >= 0,
                                            tools.may_call ? facts.tool_calls : engine::ToolCallStyle::kNone);
  ignored = fields.unknown();
  return out;
}

}  // namespace kvant::server
