#include "server/api/tools.h"

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kvant::server {
namespace {

constexpr size_t kMaxTools = 128;
constexpr size_t kMaxNameBytes = 64;

struct Tool {
  std::string name;
  Json parameters;
};

bool is_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return !name.empty() && name.size() <= kMaxNameBytes && name.find_first_not_of(kAllowed) == std::string_view::npos;
}

ApiResult<Tool> read_tool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) return refuse(path, fmt::format("'{}' must be an object, not {}", path, type_name(tool)));
  Fields fields(tool, path + ".");
  KVANT_API_ASSIGN(const auto type, fields.string("type"));
  if (type.value_or("function") != "function")
    return refuse(path + ".type", fmt::format("'{}.type' must be 'function'", path));
  KVANT_API_ASSIGN(const Json* function, fields.object("function"));
  if (function == nullptr) return refuse(path + ".function", fmt::format("'{}.function' is missing", path));
  Fields inner(*function, path + ".function.");
  KVANT_API_ASSIGN(auto name, inner.string("name"));
  if (!name || !is_name(*name)) {
    return refuse(
        path + ".function.name",
        fmt::format("'{}.function.name' must have 1 to {} letters, digits, '_', '-' or '.'", path, kMaxNameBytes));
  }
  KVANT_API_ASSIGN([[maybe_unused]] const auto description, inner.string("description"));
  KVANT_API_ASSIGN(const Json* parameters, inner.object("parameters"));
  return Tool{*std::move(name), parameters == nullptr ? Json{{"type", "object"}} : *parameters};
}

/// The schema of one call, any of `tools`. Definitions of their parameters move to its root, where references look.
ApiResult<Json> call_schema(std::vector<Tool> tools, const char* arguments_key) {
  Json schema = {{"anyOf", Json::array()}};
  for (Tool& tool : tools) {
    for (const char* folder : {"$defs", "definitions"}) {
      if (!tool.parameters.contains(folder)) continue;
      for (const auto& [name, definition] : tool.parameters[folder].items()) {
        Json& place = schema[folder][name];
        if (!place.is_null() && place != definition)
          return refuse("tools", fmt::format("two tools define '{}' differently; rename one", name.substr(0, 64)));
        place = definition;
      }
      tool.parameters.erase(folder);
    }
    schema["anyOf"].push_back({{"type", "object"},
                               {"properties", {{"name", {{"const", tool.name}}}, {arguments_key, tool.parameters}}},
                               {"required", {"name", arguments_key}}});
  }
  return schema;
}

ApiResult<engine::AnswerShape> call_shape(std::vector<Tool> tools, engine::ToolCallStyle style) {
  engine::AnswerShape shape{.kind = engine::AnswerShape::Kind::kJsonSchema};
  const char* arguments_key = "arguments";
  switch (style) {
    case engine::ToolCallStyle::kNone: break;
    case engine::ToolCallStyle::kTagged:
      shape.before = "<tool_call>\n";
      shape.after = "\n</tool_call>";
      break;
    case engine::ToolCallStyle::kBare: arguments_key = "parameters"; break;
    case engine::ToolCallStyle::kListed:
      shape.before = "[TOOL_CALLS] [";
      shape.after = "]";
      break;
  }
  KVANT_API_ASSIGN(const Json schema, call_schema(std::move(tools), arguments_key));
  shape.schema = to_text(schema);
  return shape;
}

/// Keeps the tool that an object names.
ApiResult<bool> choose(const Json& choice, std::vector<Tool>& tools) {
  Fields fields(choice, "tool_choice.");
  KVANT_API_ASSIGN(const Json* function, fields.object("function"));
  const Json empty = Json::object();
  Fields inner(function == nullptr ? empty : *function, "tool_choice.function.");
  KVANT_API_ASSIGN(const auto name, inner.string("name"));
  std::erase_if(tools, [&](const Tool& tool) { return !name || tool.name != *name; });
  if (tools.empty()) return refuse("tool_choice", "'tool_choice.function.name' names none of the 'tools'");
  return true;
}

}  // namespace

ApiResult<ToolFields> read_tools(Fields& fields, engine::ToolCallStyle style) {
  fields.accept({"parallel_tool_calls"});
  KVANT_API_ASSIGN(const Json* list, fields.array("tools"));
  const Json* choice = fields.get("tool_choice");
  ToolFields out;
  if (choice != nullptr && !choice->is_object()) {
    const std::set<std::string> kChoices{"none", "auto", "required"};
    if (!choice->is_string() || !kChoices.contains(choice->get<std::string>()))
      return refuse("tool_choice", "'tool_choice' must be 'none', 'auto', 'required' or a function");
  }
  if (list == nullptr || list->empty()) {
    if (choice != nullptr && *choice != "none" && *choice != "auto")
      return refuse("tool_choice", "'tool_choice' needs 'tools'");
    return out;
  }
  if (list->size() > kMaxTools) return refuse("tools", fmt::format("at most {} 'tools' are accepted", kMaxTools));
  std::vector<Tool> tools;
  for (size_t i = 0; i < list->size(); ++i) {
    KVANT_API_ASSIGN(Tool tool, read_tool((*list)[i], fmt::format("tools[{}]", i)));
    tools.push_back(std::move(tool));
  }
  if (choice != nullptr && *choice == "none") return out;
  if (style == engine::ToolCallStyle::kNone) {
    return refuse({.message = "the model's chat template knows no tools; leave 'tools' out",
                   .param = "tools",
                   .code = "unsupported"});
  }
  out.definitions = to_text(*list);
  out.may_call = true;
  const bool named = choice != nullptr && choice->is_object();
  if (named) {
    KVANT_API_ASSIGN([[maybe_unused]] const bool found, choose(*choice, tools));
  }
  if (named || (choice != nullptr && *choice == "required")) {
    KVANT_API_ASSIGN(out.shape, call_shape(std::move(tools), style));
  }
  return out;
}

}  // namespace kvant::server
