#include "engine/tokenizer/special_tokens.h"

#include <algorithm>
#include <functional>

namespace kvant::engine {

void SpecialTokens::add(std::string_view text, int32_t id) {
  if (text.empty() || !ids_.emplace(text, id).second) return;
  auto& lengths = lengths_[static_cast<uint8_t>(text.front())];
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), text.size(), std::greater<>());
  if (at == lengths.end() || *at != text.size()) lengths.insert(at, text.size());
}

SpecialTokens::Hit SpecialTokens::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const size_t length : lengths_[static_cast<uint8_t>(text[at])]) {
      if (length > text.size() - at) continue;
      const auto found = ids_.find(text.substr(at, length));
      if (found != ids_.end()) return {at, length, found->second};
    }
  }
  return {text.size(), 0, -1};
}

}  // namespace kvant::engine
