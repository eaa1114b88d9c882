#include "engine/tool_call_style.h"

namespace kvant::engine {

ToolCallStyle tool_call_style(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  if (!has("tools")) return ToolCallStyle::kNone;
  // A template shows the model how to call, in the words that it has to use.
  if (has("<tool_call>")) return ToolCallStyle::kTagged;
  if (has("[TOOL_CALLS]")) return ToolCallStyle::kListed;
  if (has("\"parameters\": ")) return ToolCallStyle::kBare;
  return ToolCallStyle::kNone;
}

}  // namespace kvant::engine
