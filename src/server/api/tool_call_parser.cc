#include "server/api/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include "server/json.h"

namespace kvant::server {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kList = "[TOOL_CALLS]";
constexpr std::string_view kSpace = " \t\r\n";

/// Bytes at the end of `text` that `marker` begins with.
size_t overlap(std::string_view text, std::string_view marker) {
  size_t length = std::min(text.size(), marker.size() - 1);
  while (length > 0 && !text.ends_with(marker.substr(0, length))) --length;
  return length;
}

/// Bytes of `text` from `marker` on, or from what may become one.
size_t held_from(std::string_view text, std::string_view marker) {
  const size_t at = text.find(marker);
  return at == std::string_view::npos ? overlap(text, marker) : text.size() - at;
}

bool read_call(const Json& json, ToolCall& call) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return false;
  call.name = json["name"].get<std::string>();
  call.arguments = "{}";
  for (const char* key : {"arguments", "parameters"})
    if (json.contains(key)) call.arguments = json[key].is_string() ? json[key].get<std::string>() : to_text(json[key]);
  return true;
}

}  // namespace

bool ToolCallParser::read_calls(std::string_view text, std::vector<ToolCall>& calls) {
  const auto json = parse_json(text);
  if (!json) return false;
  std::vector<ToolCall> read;
  const Json list = json->is_array() ? *json : Json::array({*json});
  for (const Json& item : list)
    if (!read_call(item, read.emplace_back())) return false;
  std::move(read.begin(), read.end(), std::back_inserter(calls));
  return !list.empty();
}

std::string ToolCallParser::take_text() {
  // White space between calls and after them is not part of what the model says.
  if (after_call_) held_.erase(0, std::min(held_.find_first_not_of(kSpace), held_.size()));
  after_call_ = after_call_ && held_.empty();
  size_t keep = 0;
  switch (style_) {
    case engine::ToolCallStyle::kNone: break;
    case engine::ToolCallStyle::kTagged: keep = held_from(held_, kOpen); break;
    case engine::ToolCallStyle::kListed: keep = held_from(held_, kList); break;
    case engine::ToolCallStyle::kBare: {
      const size_t first = held_.find_first_not_of(kSpace);
      plain_ = plain_ || (first != std::string::npos && held_[first] != '{');
      keep = plain_ ? 0 : held_.size();
      break;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

void ToolCallParser::take_calls(Found& found) {
  // Only tagged calls end before the answer does.
  while (style_ == engine::ToolCallStyle::kTagged && held_.starts_with(kOpen)) {
    const size_t close = held_.find(kClose);
    if (close == std::string::npos) return;
    const size_t end = close + kClose.size();
    after_call_ = read_calls(std::string_view(held_).substr(kOpen.size(), close - kOpen.size()), found.calls);
    if (!after_call_) found.text += held_.substr(0, end);
    held_.erase(0, end);
    found.text += take_text();
  }
}

ToolCallParser::Found ToolCallParser::push(std::string_view text) {
  held_ += text;
  Found found;
  found.text = take_text();
  take_calls(found);
  return found;
}

ToolCallParser::Found ToolCallParser::finish() {
  Found found;
  std::string_view rest = held_;
  if (rest.starts_with(kOpen)) rest.remove_prefix(kOpen.size());
  if (rest.starts_with(kList)) rest.remove_prefix(kList.size());
  const bool may_be_call =
      style_ != engine::ToolCallStyle::kNone && !plain_ && rest.find('{') != std::string_view::npos;
  if (!may_be_call || !read_calls(rest, found.calls)) found.text = held_;
  held_.clear();
  return found;
}

}  // namespace kvant::server
