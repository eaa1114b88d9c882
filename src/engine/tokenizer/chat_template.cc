#include "engine/tokenizer/chat_template.h"

#include <algorithm>
#include <ctime>

#include "engine/tokenizer/jinja_ast.h"
#include "engine/tokenizer/jinja_json.h"
#include "engine/tokenizer/jinja_renderer.h"

namespace kvant::engine {

namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;
constexpr int64_t kMaxSteps = 4'000'000;
// A rendering may make this much text, plus this many times the size of the messages.
constexpr int64_t kMaxTextBytes = int64_t{16} << 20;
constexpr int64_t kMaxTextPerInputByte = 64;

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

Result<jinja::Value> message_value(const ChatMessage& message) {
  auto dict = std::make_shared<jinja::Dict>();
  dict->items.emplace_back(jinja::make_text("role"), jinja::make_text(message.role, jinja::Text::kMessage));
  dict->items.emplace_back(jinja::make_text("content"), jinja::make_text(message.content, jinja::Text::kMessage));
  if (!message.tool_calls.empty()) {
    KVANT_ASSIGN_OR_FAIL(jinja::Value calls, jinja::value_of_json(message.tool_calls));
    dict->items.emplace_back(jinja::make_text("tool_calls"), std::move(calls));
  }
  const auto add_text = [&](std::string_view key, const std::string& text) {
    if (!text.empty()) dict->items.emplace_back(jinja::make_text(key), jinja::make_text(text, jinja::Text::kMessage));
  };
  add_text("tool_call_id", message.tool_call_id);
  add_text("name", message.name);
  dict->measure();
  return jinja::Value(jinja::DictPtr(std::move(dict)));
}

std::vector<PromptPiece> pieces_of(const jinja::Text& text) {
  std::vector<PromptPiece> pieces;
  size_t begin = 0;
  while (begin < text.size()) {
    const char origin = text.origin[begin];
    const size_t end = std::min(text.origin.find_first_not_of(origin, begin), text.size());
    pieces.push_back({text.bytes.substr(begin, end - begin), origin == jinja::Text::kTemplate});
    begin = end;
  }
  return pieces;
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return failure(StatusCode::kInvalidArgument,
                   "chat template: " + std::to_string(source.size()) + " bytes; at most 1048576 are accepted");
  }
  KVANT_ASSIGN_OR_FAIL(jinja::Block block, jinja::parse(source));
  auto impl = std::make_unique<Impl>();
  impl->block = std::move(block);
  return ChatTemplate(std::move(impl));
}

Result<std::vector<PromptPiece>> ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                                      std::string_view bos_token, std::string_view eos_token,
                                                      std::optional<std::tm> now, std::string_view tools) const {
  auto list = std::make_shared<jinja::List>();
  auto input_bytes = static_cast<int64_t>(tools.size());
  for (const ChatMessage& message : messages) {
    KVANT_ASSIGN_OR_FAIL(jinja::Value value, message_value(message));
    list->items.push_back(std::move(value));
    input_bytes += static_cast<int64_t>(message.role.size() + message.content.size() + message.tool_calls.size());
  }
  list->measure();
  jinja::Value definitions = jinja::None{};  // As Hugging Face passes them when there are none.
  if (!tools.empty()) {
    KVANT_ASSIGN_OR_FAIL(definitions, jinja::value_of_json(tools));
  }
  jinja::RenderInput input;
  input.variables = {
      {"messages", jinja::ListPtr(std::move(list))},
      {"add_generation_prompt", add_generation_prompt},
      {"bos_token", jinja::make_text(bos_token)},
      {"eos_token", jinja::make_text(eos_token)},
      {"tools", std::move(definitions)},
      {"documents", jinja::None{}},
  };
  input.now = now ? *now : local_time();
  input.max_steps = kMaxSteps + input_bytes;
  input.max_text_bytes = kMaxTextBytes + kMaxTextPerInputByte * input_bytes;
  KVANT_ASSIGN_OR_FAIL(const jinja::Text text, jinja::render(impl_->block, input));
  return pieces_of(text);
}

}  // namespace kvant::engine
