#include "engine/tokenizer/chat_template.h"

#include <algorithm>
#include <ctime>

#include "engine/tokenizer/jinja_ast.h"
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

jinja::Value message_value(const ChatMessage& message) {
  auto dict = std::make_shared<jinja::Dict>();
  dict->items.emplace_back(jinja::make_text("role"), jinja::make_text(message.role, jinja::Text::kMessage));
  dict->items.emplace_back(jinja::make_text("content"), jinja::make_text(message.content, jinja::Text::kMessage));
  dict->measure();
  return jinja::DictPtr(std::move(dict));
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
                                                      std::optional<std::tm> now) const {
  auto list = std::make_shared<jinja::List>();
  int64_t input_bytes = 0;
  for (const ChatMessage& message : messages) {
    list->items.push_back(message_value(message));
    input_bytes += static_cast<int64_t>(message.role.size() + message.content.size());
  }
  list->measure();
  jinja::RenderInput input;
  input.variables = {
      {"messages", jinja::ListPtr(std::move(list))},
      {"add_generation_prompt", add_generation_prompt},
      {"bos_token", jinja::make_text(bos_token)},
      {"eos_token", jinja::make_text(eos_token)},
      // As Hugging Face passes them when there are none.
      {"tools", jinja::None{}},
      {"documents", jinja::None{}},
  };
  input.now = now ? *now : local_time();
  input.max_steps = kMaxSteps + input_bytes;
  input.max_text_bytes = kMaxTextBytes + kMaxTextPerInputByte * input_bytes;
  KVANT_ASSIGN_OR_FAIL(const jinja::Text text, jinja::render(impl_->block, input));
  return pieces_of(text);
}

}  // namespace kvant::engine
