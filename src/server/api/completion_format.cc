#include "server/api/completion_format.h"

#include <utility>

#include "engine/tokenizer/utf8.h"
#include "server/api/logprobs_json.h"

namespace kvant::server {

CompletionFormat::CompletionFormat(const engine::Engine& engine, AnswerIdentity identity,
                                   std::vector<std::string> echoes, bool logprobs)
    : engine_(engine), identity_(std::move(identity)), echoes_(std::move(echoes)), logprobs_(logprobs) {
  for (const std::string& echo : echoes_) offsets_.push_back(static_cast<int64_t>(engine::utf8_count(echo)));
}

Json CompletionFormat::head(bool /*chunk*/) const {
  return {
      {"id", identity_.id}, {"object", "text_completion"}, {"created", identity_.created}, {"model", identity_.model}};
}

Json CompletionFormat::choice(size_t index, std::string text, const std::vector<engine::TokenLogprobs>& tokens,
                              Json finish_reason) {
  return {{"index", index},
          {"text", std::move(text)},
          {"logprobs", logprobs_ ? completion_logprobs(engine_, tokens, offsets_[index]) : Json()},
          {"finish_reason", std::move(finish_reason)}};
}

Json CompletionFormat::chunk_of(Json choice) const {
  Json chunk = head(true);
  chunk["choices"] = Json::array({std::move(choice)});
  return chunk;
}

Json CompletionFormat::whole(const std::vector<WholeAnswer>& answers) {
  Json out = head(false);
  out["choices"] = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::vector<engine::TokenLogprobs>& prompt = answers[i].end.prompt_logprobs;
    std::vector<engine::TokenLogprobs> tokens = prompt;
    tokens.insert(tokens.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    if (!prompt.empty()) offsets_[i] = 0;
    Json item = choice(i, echoes_[i] + answers[i].text, tokens, finish_reason_name(answers[i].end.finish_reason));
    // Nothing comes before the first token of a prompt that could make it likely.
    if (!prompt.empty())
      for (const char* list : {"token_logprobs", "top_logprobs"}) item["logprobs"][list][0] = nullptr;
    out["choices"].push_back(std::move(item));
  }
  return out;
}

std::vector<Json> CompletionFormat::opening(size_t index) {
  if (echoes_[index].empty()) return {};
  return {chunk_of(choice(index, echoes_[index], {}, nullptr))};
}

std::vector<Json> CompletionFormat::chunks(const AnswerEvent& event) {
  const Json reason = event.end ? Json(finish_reason_name(event.end->finish_reason)) : Json();
  return {chunk_of(choice(event.choice, event.text, event.tokens, reason))};
}

}  // namespace kvant::server
