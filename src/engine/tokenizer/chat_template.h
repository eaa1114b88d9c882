#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/core/status.h"

namespace kvant::engine {

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", "tool"
  std::string content;
  std::string tool_calls = {};  ///< JSON; empty = the message has none.
  std::string tool_call_id = {};
  std::string name = {};
};

/// A piece of a rendered prompt. Only template text may hold special tokens; message text never does, so that nobody
/// can type a control token.
struct PromptPiece {
  std::string text;
  bool from_template = true;
};

/// Interpreter for the Jinja subset that chat templates use. A construct outside it is refused by name at parse time.
class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Renders a conversation; adjacent pieces have different origins. `raise_exception` of the template comes back as
  /// kInvalidArgument with its text. `now` is what strftime_now formats; the local time when left out. `tools` is a
  /// JSON array of definitions, or empty.
  Result<std::vector<PromptPiece>> render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                          std::string_view bos_token, std::string_view eos_token,
                                          std::optional<std::tm> now = std::nullopt, std::string_view tools = {}) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvant::engine
