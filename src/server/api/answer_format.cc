#include "server/api/answer_format.h"

#include <chrono>
#include <random>

#include <fmt/format.h>

namespace kvant::server {

Json to_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

AnswerIdentity AnswerIdentity::make(std::string_view prefix, std::string model) {
  std::random_device random;
  const auto word = [&] { return (static_cast<uint64_t>(random()) << 32) | random(); };
  return {
      .id = fmt::format("{}-{:016x}{:016x}", prefix, word(), word()),
      .created =
          std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(),
      .model = std::move(model)};
}

std::string_view finish_reason_name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
    case engine::FinishReason::kCancelled: return "stop";
    case engine::FinishReason::kLength: return "length";
    case engine::FinishReason::kError: return "error";
  }
  return "error";
}

}  // namespace kvant::server
