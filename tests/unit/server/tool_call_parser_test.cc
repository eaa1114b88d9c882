#include "server/api/tool_call_parser.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::server {
namespace {

using Style = engine::ToolCallStyle;

struct Answer {
  std::string text;
  std::string calls;
  friend bool operator==(const Answer&, const Answer&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Answer& a) { return out << a.text << " | " << a.calls; }
};

/// Feeds the text in parts of `size` bytes.
Answer parse(Style style, std::string_view text, size_t size) {
  ToolCallParser parser(style);
  Answer out;
  const auto add = [&](const ToolCallParser::Found& found) {
    out.text += found.text;
    for (const ToolCall& call : found.calls) out.calls += call.name + call.arguments + ";";
  };
  for (size_t i = 0; i < text.size(); i += size) add(parser.push(text.substr(i, size)));
  add(parser.finish());
  return out;
}

void expect(Style style, std::string_view text, const Answer& answer) {
  for (size_t size = 1; size <= text.size() + 1; ++size) EXPECT_EQ(parse(style, text, size), answer) << size;
}

TEST(ToolCallParser, LeavesPlainTextAlone) {
  for (const Style style : {Style::kNone, Style::kTagged, Style::kBare, Style::kListed}) {
    expect(style, "hello < world [TOOL", {"hello < world [TOOL", ""});
    expect(style, "", {"", ""});
  }
  expect(Style::kNone, "<tool_call>{\"name\":\"f\"}</tool_call>", {"<tool_call>{\"name\":\"f\"}</tool_call>", ""});
}

TEST(ToolCallParser, FindsTaggedCalls) {
  expect(Style::kTagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
         {"", "f{\"a\":1};"});
  expect(Style::kTagged,
         "Let me.\n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>",
         {"Let me.\n", "f{};g{};"});
  // The end tag is missing, as when it is an end-of-turn token.
  expect(Style::kTagged, "<tool_call>{\"name\":\"f\"}", {"", "f{};"});
}

TEST(ToolCallParser, GivesBrokenCallsAsText) {
  expect(Style::kTagged, "<tool_call>{\"name\":</tool_call>", {"<tool_call>{\"name\":</tool_call>", ""});
  expect(Style::kTagged, "a<tool_call>{\"name\":\"f\"", {"a<tool_call>{\"name\":\"f\"", ""});
  expect(Style::kBare, "{\"x\":1}", {"{\"x\":1}", ""});
  expect(Style::kListed, "[TOOL_CALLS] [{\"x\":1}]", {"[TOOL_CALLS] [{\"x\":1}]", ""});
}

TEST(ToolCallParser, FindsBareAndListedCalls) {
  expect(Style::kBare, " {\"name\":\"f\",\"parameters\":{\"a\":[1]}}", {"", "f{\"a\":[1]};"});
  expect(Style::kListed, "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{}},{\"name\":\"g\"}]", {"", "f{};g{};"});
}

}  // namespace
}  // namespace kvant::server
