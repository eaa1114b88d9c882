#include "server/api/tokenize_request.h"

#include <fmt/format.h>

#include "server/api/chat_messages.h"
#include "server/api/fields.h"
#include "server/api/logprobs_json.h"
#include "server/api/token_ids.h"
#include "server/api/tools.h"

namespace kvant::server {
namespace {

ApiResult<std::vector<int32_t>> encode(Fields& fields, const engine::Engine& engine) {
  if (fields.get("messages") != nullptr) {
    KVANT_API_ASSIGN(const std::vector<engine::ChatTurn> turns, read_messages(fields));
    KVANT_API_ASSIGN(const ToolFields tools, read_tools(fields, engine.facts().tool_calls));
    auto tokens = engine.encode_chat(turns, tools.definitions);
    if (!tokens) return refuse(to_api_error(tokens.error(), "messages"));
    return *std::move(tokens);
  }
  KVANT_API_ASSIGN(const auto prompt, fields.string("prompt"));
  KVANT_API_ASSIGN(const auto content, fields.string("content"));
  KVANT_API_ASSIGN(const auto specials, fields.boolean("add_special_tokens"));
  if (!prompt && !content) return refuse("prompt", "'prompt' or 'messages' is missing");
  const std::string& text = prompt ? *prompt : *content;
  if (!specials.value_or(true)) return engine.tokenize(text);
  auto tokens = engine.encode_prompt(text);
  if (!tokens) return refuse(to_api_error(tokens.error(), "prompt"));
  return *std::move(tokens);
}

}  // namespace

ApiResult<Json> tokenize(const Json& body, const RequestContext& context, std::vector<std::string>& ignored) {
  Fields fields(body);
  fields.accept({"model"});
  KVANT_API_ASSIGN(const std::vector<int32_t> tokens, encode(fields, context.engine));
  KVANT_API_ASSIGN(const auto pieces, fields.boolean("with_pieces"));
  Json out = {{"tokens", tokens}, {"count", tokens.size()}, {"max_model_len", context.engine.facts().context}};
  if (pieces.value_or(false)) {
    out["pieces"] = Json::array();
    for (const int32_t id : tokens) out["pieces"].push_back(token_name(context.engine.token_bytes(id)));
  }
  ignored = fields.unknown();
  return out;
}

ApiResult<Json> detokenize(const Json& body, const RequestContext& context, std::vector<std::string>& ignored) {
  Fields fields(body);
  fields.accept({"model"});
  KVANT_API_ASSIGN(const Json* list, fields.array("tokens"));
  if (list == nullptr) return refuse("tokens", "'tokens' is missing");
  KVANT_API_ASSIGN(const std::vector<int32_t> tokens,
                   read_token_ids(*list, "tokens", context.engine.facts().vocabulary));
  std::string text;
  for (const int32_t id : tokens) text += context.engine.token_bytes(id);
  ignored = fields.unknown();
  return Json{{"prompt", text}};
}

}  // namespace kvant::server
