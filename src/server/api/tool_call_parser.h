#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvant/engine/engine.h"

namespace kvant::server {

struct ToolCall {
  std::string name;
  std::string arguments;  ///< JSON text
};

/// Finds calls of tools in the text of an answer as it comes. What is no call, or a broken one, stays text.
class ToolCallParser {
 public:
  explicit ToolCallParser(engine::ToolCallStyle style) : style_(style) {}

  struct Found {
    std::string text;
    std::vector<ToolCall> calls;
  };
  /// Takes text; gives what is certain by now. Text that may become a call is held.
  Found push(std::string_view text);
  /// What is still held: the answer has ended.
  Found finish();

 private:
  std::string take_text();
  void take_calls(Found& found);
  static bool read_calls(std::string_view json, std::vector<ToolCall>& calls);

  engine::ToolCallStyle style_;
  std::string held_;
  bool after_call_ = false;
  bool plain_ = false;  ///< A bare answer that did not begin like a call.
};

}  // namespace kvant::server
