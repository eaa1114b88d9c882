#include "server/api/logprobs_json.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "engine/tokenizer/utf8.h"

namespace kvant::server {
namespace {

constexpr double kLowest = -9999.0;

Json bytes_of(std::string_view bytes) {
  Json out = Json::array();
  for (const char byte : bytes) out.push_back(static_cast<unsigned char>(byte));
  return out;
}

Json chat_token(const engine::Engine& engine, const engine::TokenLogprob& item) {
  const std::string bytes = engine.token_bytes(item.token);
  return {{"token", token_name(bytes)}, {"logprob", finite_logprob(item.logprob)}, {"bytes", bytes_of(bytes)}};
}

}  // namespace

std::string token_name(std::string_view bytes) {
  if (engine::utf8_valid_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string out = "bytes:";
  for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return out;
}

double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? std::max(static_cast<double>(logprob), kLowest) : kLowest;
}

Json chat_logprobs(const engine::Engine& engine, const std::vector<engine::TokenLogprobs>& tokens) {
  Json content = Json::array();
  for (const engine::TokenLogprobs& token : tokens) {
    Json item = chat_token(engine, token.chosen);
    item["top_logprobs"] = Json::array();
    for (const engine::TokenLogprob& other : token.top) item["top_logprobs"].push_back(chat_token(engine, other));
    content.push_back(std::move(item));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json completion_logprobs(const engine::Engine& engine, const std::vector<engine::TokenLogprobs>& tokens,
                         int64_t& offset) {
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const engine::TokenLogprobs& token : tokens) {
    const std::string bytes = engine.token_bytes(token.chosen.token);
    out["tokens"].push_back(token_name(bytes));
    out["token_logprobs"].push_back(finite_logprob(token.chosen.logprob));
    Json top = Json::object();
    for (const engine::TokenLogprob& other : token.top)
      top[token_name(engine.token_bytes(other.token))] = finite_logprob(other.logprob);
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(offset);
    const int32_t ids[] = {token.chosen.token};
    offset += static_cast<int64_t>(engine::utf8_count(engine.decode(ids)));
  }
  return out;
}

}  // namespace kvant::server
