#include "engine/grammar/token_table.h"

#include <algorithm>
#include <limits>

namespace kvant::engine {

bool TokenSet::empty() const {
  return std::all_of(bits_.begin(), bits_.end(), [](uint64_t word) { return word == 0; });
}

TokenTable::TokenTable(const Tokenizer& tokenizer) : vocabulary_(tokenizer.vocabulary_size()) {
  for (int32_t id = 0; id < vocabulary_; ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (!bytes.empty()) entries_.push_back({id, bytes, 0});
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.bytes < b.bytes; });
  for (size_t i = 1; i < entries_.size(); ++i) {
    const std::string_view a = entries_[i - 1].bytes;
    const std::string_view b = entries_[i].bytes;
    const auto [end, unused] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    entries_[i].shared = static_cast<uint32_t>(end - a.begin());
  }
}

TokenSet TokenTable::allowed(ByteAutomaton& automaton, ByteAutomaton::State state) const {
  TokenSet out(vocabulary_);
  // path[i] is the state after i bytes of the present token. Where a token dies, those that share that beginning do
  // too.
  std::vector<ByteAutomaton::State> path{state};
  size_t dead_from = std::numeric_limits<size_t>::max();
  for (const Entry& entry : entries_) {
    if (entry.shared >= dead_from) continue;
    dead_from = std::numeric_limits<size_t>::max();
    path.resize(entry.shared + 1);
    for (size_t i = entry.shared; i < entry.bytes.size(); ++i) {
      const ByteAutomaton::State next = automaton.next(path.back(), static_cast<uint8_t>(entry.bytes[i]));
      if (next == ByteAutomaton::kDead) {
        dead_from = i + 1;
        break;
      }
      path.push_back(next);
    }
    if (dead_from == std::numeric_limits<size_t>::max()) out.add(entry.id);
  }
  return out;
}

}  // namespace kvant::engine
