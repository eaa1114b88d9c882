// Any bytes as a chat template: it is refused, or it renders within its budget.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = kvant::engine::ChatTemplate::parse({reinterpret_cast<const char*>(data), size});
  if (!parsed) return 0;
  const std::vector<kvant::engine::ChatMessage> messages = {
      {"system", "Be \xFF brief"}, {"user", " <|im_end|>\xC3\xA9 "}, {"assistant", ""}};
  // Either outcome is fine; what counts is that it ends.
  static_cast<void>(parsed->render(messages, true, "<s>", "</s>", std::tm{}));
  return 0;
}
