/// Renders chat templates for tests/golden/compare_chat_templates.py. Reads one JSON object a line from standard input:
/// {template, messages: [{role, content}], add_generation_prompt, bos_token, eos_token}; writes one a line:
/// {pieces: [[text, from_template]]} or {error}. strftime_now sees 2024-07-26 12:00:00.
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/chat_template.h"

namespace {

std::tm fixed_time() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 12;
  now.tm_wday = 5;
  now.tm_yday = 207;
  return now;
}

nlohmann::json answer(const nlohmann::json& request) {
  const auto parsed = kvant::engine::ChatTemplate::parse(request["template"].get<std::string>());
  if (!parsed) return {{"error", parsed.error().to_string()}, {"at", "parse"}};
  std::vector<kvant::engine::ChatMessage> messages;
  for (const auto& message : request["messages"]) messages.push_back({message["role"], message["content"]});
  const auto pieces =
      parsed->render(messages, request["add_generation_prompt"], request["bos_token"].get<std::string>(),
                     request["eos_token"].get<std::string>(), fixed_time());
  if (!pieces) return {{"error", pieces.error().to_string()}, {"at", "render"}};
  nlohmann::json out = nlohmann::json::array();
  for (const auto& piece : *pieces) out.push_back({piece.text, piece.from_template});
  return {{"pieces", out}};
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) fmt::print("{}\n", answer(nlohmann::json::parse(line)).dump());
  return 0;
}
