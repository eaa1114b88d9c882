#include "server/api/chat_messages.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace kvant::server {
namespace {

constexpr size_t kMaxMessages = 4096;
constexpr std::array<std::string_view, 6> kRoles{"system", "developer", "user", "assistant", "tool", "function"};

ApiResult<std::string> read_part(const Json& part, const std::string& path) {
  if (part.is_string()) return part.get<std::string>();
  if (!part.is_object()) return refuse(path, fmt::format("'{}' must be an object, not {}", path, type_name(part)));
  Fields fields(part, path + ".");
  KVANT_API_ASSIGN(const auto type, fields.string("type"));
  if (type.value_or("text") != "text" && *type != "input_text" && *type != "refusal") {
    return refuse(path + ".type", fmt::format("'{}.type' is '{}'; this model takes text alone", path, *type));
  }
  KVANT_API_ASSIGN(auto text, fields.string(type.value_or("text") == "refusal" ? "refusal" : "text"));
  if (!text) return refuse(path + ".text", fmt::format("'{}.text' is missing", path));
  return *std::move(text);
}

ApiResult<std::string> read_content(Fields& fields) {
  const Json* content = fields.get("content");
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    return refuse(fields.name_of("content"), fmt::format("'{}' must be a string, an array of parts or null, not {}",
                                                         fields.name_of("content"), type_name(*content)));
  }
  std::string out;
  for (size_t i = 0; i < content->size(); ++i) {
    KVANT_API_ASSIGN(const std::string part,
                     read_part((*content)[i], fmt::format("{}[{}]", fields.name_of("content"), i)));
    out += part;
  }
  return out;
}

/// Calls that the assistant made before. Templates want arguments as objects; the API has them as text.
ApiResult<std::string> read_tool_calls(Fields& fields) {
  KVANT_API_ASSIGN(const Json* calls, fields.array("tool_calls"));
  if (calls == nullptr || calls->empty()) return std::string();
  Json out = *calls;
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", fields.name_of("tool_calls"), i);
    Json& call = out[i];
    const bool has_function = call.is_object() && call.contains("function") && call["function"].is_object();
    if (!has_function || !call["function"].contains("name") || !call["function"]["name"].is_string())
      return refuse(path, fmt::format("'{}' must have a 'function' with a 'name'", path));
    Json& function = call["function"];
    if (!function.contains("arguments")) function["arguments"] = Json::object();
    if (!function["arguments"].is_string()) continue;
    const std::string text = function["arguments"].get<std::string>();
    const auto arguments = parse_json(text.empty() ? "{}" : text);
    if (!arguments) {
      return refuse(path + ".function.arguments",
                    fmt::format("'{}.function.arguments' holds no JSON: {}", path, arguments.error().message()));
    }
    function["arguments"] = *arguments;
  }
  return to_text(out);
}

ApiResult<engine::ChatTurn> read_message(const Json& message, size_t index) {
  const std::string path = fmt::format("messages[{}]", index);
  if (!message.is_object())
    return refuse(path, fmt::format("'{}' must be an object, not {}", path, type_name(message)));
  Fields fields(message, path + ".");
  engine::ChatTurn turn;
  KVANT_API_ASSIGN(auto role, fields.string("role"));
  if (!role) return refuse(path + ".role", fmt::format("'{}.role' is missing", path));
  if (std::find(kRoles.begin(), kRoles.end(), *role) == kRoles.end()) {
    return refuse(path + ".role", fmt::format("'{}.role' is '{}' and must be one of {}", path, role->substr(0, 32),
                                              fmt::join(kRoles, ", ")));
  }
  // The newer name of the system role, which templates do not know.
  turn.role = *role == "developer" ? "system" : *std::move(role);
  KVANT_API_ASSIGN(turn.content, read_content(fields));
  KVANT_API_ASSIGN(turn.tool_calls, read_tool_calls(fields));
  KVANT_API_ASSIGN(const auto call_id, fields.string("tool_call_id"));
  KVANT_API_ASSIGN(const auto name, fields.string("name"));
  turn.tool_call_id = call_id.value_or("");
  turn.name = name.value_or("");
  return turn;
}

}  // namespace

ApiResult<std::vector<engine::ChatTurn>> read_messages(Fields& fields) {
  KVANT_API_ASSIGN(const Json* messages, fields.array("messages"));
  if (messages == nullptr) return refuse("messages", "'messages' is missing");
  if (messages->empty() || messages->size() > kMaxMessages)
    return refuse("messages", fmt::format("'messages' must hold 1 to {} messages", kMaxMessages));
  std::vector<engine::ChatTurn> turns;
  for (size_t i = 0; i < messages->size(); ++i) {
    KVANT_API_ASSIGN(engine::ChatTurn turn, read_message((*messages)[i], i));
    turns.push_back(std::move(turn));
  }
  return turns;
}

}  // namespace kvant::server
