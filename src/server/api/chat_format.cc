#include "server/api/chat_format.h"

#include <iterator>
#include <utility>

#include "server/api/logprobs_json.h"

namespace kvant::server {
namespace {

Json to_json(const ToolCall& call) {
  return {{"id", AnswerIdentity::make("call", {}).id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

}  // namespace

Json ChatFormat::head(bool chunk) const {
  return {{"id", identity_.id},
          {"object", chunk ? "chat.completion.chunk" : "chat.completion"},
          {"created", identity_.created},
          {"model", identity_.model}};
}

Json ChatFormat::chunk_of(size_t choice, Json delta, const Tokens& tokens, Json finish_reason) const {
  Json chunk = head(true);
  chunk["choices"] = Json::array({{{"index", choice},
                                   {"delta", std::move(delta)},
                                   {"logprobs", logprobs_ && !tokens.empty() ? chat_logprobs(engine_, tokens) : Json()},
                                   {"finish_reason", std::move(finish_reason)}}});
  return chunk;
}

Json ChatFormat::whole_choice(size_t index, const WholeAnswer& answer) const {
  ToolCallParser parser(tool_calls_);
  ToolCallParser::Found found = parser.push(answer.text);
  ToolCallParser::Found rest = parser.finish();
  found.text += rest.text;
  std::move(rest.calls.begin(), rest.calls.end(), std::back_inserter(found.calls));
  const bool calls = !found.calls.empty();
  Json message = {{"role", "assistant"}, {"content", found.text}, {"refusal", nullptr}};
  if (calls) {
    if (found.text.empty()) message["content"] = nullptr;
    message["tool_calls"] = Json::array();
    for (const ToolCall& call : found.calls) message["tool_calls"].push_back(to_json(call));
  }
  const bool stopped = answer.end.finish_reason == engine::FinishReason::kStop;
  return {{"index", index},
          {"message", std::move(message)},
          {"logprobs", logprobs_ ? chat_logprobs(engine_, answer.tokens) : Json()},
          {"finish_reason", calls && stopped ? "tool_calls" : finish_reason_name(answer.end.finish_reason)}};
}

Json ChatFormat::whole(const std::vector<WholeAnswer>& answers) {
  Json out = head(false);
  out["choices"] = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) out["choices"].push_back(whole_choice(i, answers[i]));
  return out;
}

std::vector<Json> ChatFormat::opening(size_t choice) {
  return {chunk_of(choice, {{"role", "assistant"}, {"content", ""}}, {}, nullptr)};
}

void ChatFormat::add_found(size_t choice, Streamed& streamed, ToolCallParser::Found found, std::vector<Json>& out) {
  if (!found.text.empty())
    out.push_back(chunk_of(choice, {{"content", found.text}}, std::exchange(streamed.tokens, {}), nullptr));
  for (const ToolCall& call : found.calls) {
    Json item = {{"index", streamed.calls++}};
    item.update(to_json(call));
    out.push_back(chunk_of(choice, {{"tool_calls", Json::array({std::move(item)})}}, std::exchange(streamed.tokens, {}),
                           nullptr));
  }
}

std::vector<Json> ChatFormat::chunks(const AnswerEvent& event) {
  const Json reason = event.end ? Json(finish_reason_name(event.end->finish_reason)) : Json();
  if (tool_calls_ == engine::ToolCallStyle::kNone) {
    if (event.end) return {chunk_of(event.choice, Json::object(), {}, reason)};
    return {chunk_of(event.choice, {{"content", event.text}}, event.tokens, nullptr)};
  }
  Streamed& streamed =
      streamed_.try_emplace(event.choice, Streamed{.parser = ToolCallParser(tool_calls_), .tokens = {}}).first->second;
  streamed.tokens.insert(streamed.tokens.end(), event.tokens.begin(), event.tokens.end());
  std::vector<Json> out;
  add_found(event.choice, streamed, streamed.parser.push(event.text), out);
  if (!event.end) return out;
  add_found(event.choice, streamed, streamed.parser.finish(), out);
  const bool called = streamed.calls > 0 && event.end->finish_reason == engine::FinishReason::kStop;
  out.push_back(chunk_of(event.choice, Json::object(), {}, called ? Json("tool_calls") : reason));
  return out;
}

}  // namespace kvant::server
