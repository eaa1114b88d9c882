#include "engine/tokenizer/special_tokens.h"

#include <algorithm>
#include <functional>

#include <utf8proc.h>

#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {

/// \w of regular expressions: letters, marks, digits and connectors.
bool is_word(uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

bool word_before(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && at - begin < 4) {
    --begin;
    if ((static_cast<uint8_t>(text[begin]) & 0xC0) != 0x80) break;
  }
  if (begin == at) return false;
  const Utf8Step step = utf8_step(text.substr(begin, at - begin));
  return step.kind == Utf8Step::Kind::kCharacter && is_word(step.code_point);
}

bool word_after(std::string_view text, size_t at) {
  if (at == text.size()) return false;
  const Utf8Step step = utf8_step(text.substr(at));
  return step.kind == Utf8Step::Kind::kCharacter && is_word(step.code_point);
}

}  // namespace

void SpecialTokens::add(std::string_view text, int32_t id, Flags flags) {
  if (text.empty() || !tokens_.emplace(text, Token{id, flags}).second) return;
  auto& lengths = lengths_[static_cast<uint8_t>(text.front())];
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), text.size(), std::greater<>());
  if (at == lengths.end() || *at != text.size()) lengths.insert(at, text.size());
}

SpecialTokens::Hit SpecialTokens::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const size_t length : lengths_[static_cast<uint8_t>(text[at])]) {
      if (length > text.size() - at) continue;
      const auto found = tokens_.find(text.substr(at, length));
      if (found == tokens_.end()) continue;
      const auto& [id, flags] = found->second;
      if (flags.single_word && (word_before(text, at) || word_after(text, at + length))) continue;
      return {at, length, id, flags};
    }
  }
  return {text.size(), 0, -1, {}};
}

}  // namespace kvant::engine
