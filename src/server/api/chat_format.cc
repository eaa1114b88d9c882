#include "server/api/chat_format.h"

#include <utility>

#include "server/api/logprobs_json.h"

namespace kvant::server {

Json ChatFormat::head(bool chunk) const {
  return {{"id", identity_.id},
          {"object", chunk ? "chat.completion.chunk" : "chat.completion"},
          {"created", identity_.created},
          {"model", identity_.model}};
}

Json ChatFormat::chunk_of(size_t choice, Json delta, const std::vector<engine::TokenLogprobs>& tokens,
                          Json finish_reason) const {
  Json chunk = head(true);
  chunk["choices"] = Json::array({{{"index", choice},
                                   {"delta", std::move(delta)},
                                   {"logprobs", logprobs_ && !tokens.empty() ? chat_logprobs(engine_, tokens) : Json()},
                                   {"finish_reason", std::move(finish_reason)}}});
  return chunk;
}

Json ChatFormat::whole(const std::vector<WholeAnswer>& answers) {
  Json out = head(false);
  out["choices"] = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    const WholeAnswer& answer = answers[i];
    out["choices"].push_back({{"index", i},
                              {"message", {{"role", "assistant"}, {"content", answer.text}, {"refusal", nullptr}}},
                              {"logprobs", logprobs_ ? chat_logprobs(engine_, answer.tokens) : Json()},
                              {"finish_reason", finish_reason_name(answer.end.finish_reason)}});
  }
  return out;
}

std::vector<Json> ChatFormat::opening(size_t choice) {
  return {chunk_of(choice, {{"role", "assistant"}, {"content", ""}}, {}, nullptr)};
}

std::vector<Json> ChatFormat::chunks(const AnswerEvent& event) {
  if (!event.end) return {chunk_of(event.choice, {{"content", event.text}}, event.tokens, nullptr)};
  return {chunk_of(event.choice, Json::object(), {}, finish_reason_name(event.end->finish_reason))};
}

}  // namespace kvant::server
