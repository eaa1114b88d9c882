#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/grammar/byte_automaton.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvant::engine {

/// A set of token ids.
class TokenSet {
 public:
  explicit TokenSet(int32_t vocabulary) : bits_((static_cast<size_t>(vocabulary) + 63) / 64) {}
  void add(int32_t id) { bits_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); }
  bool contains(int32_t id) const { return (bits_[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0; }
  bool empty() const;

 private:
  std::vector<uint64_t> bits_;
};

/// The vocabulary in the order of its bytes, so that tokens that begin alike are looked at together. Control tokens and
/// tokens without bytes are left out. Immutable.
class TokenTable {
 public:
  /// `tokenizer` must outlive the table.
  explicit TokenTable(const Tokenizer& tokenizer);

  int32_t vocabulary() const { return vocabulary_; }
  /// Tokens that lead from a state to another.
  TokenSet allowed(ByteAutomaton& automaton, ByteAutomaton::State state) const;

 private:
  struct Entry {
    int32_t id;
    std::string_view bytes;
    uint32_t shared;  ///< Leading bytes that the entry before has too.
  };
  int32_t vocabulary_;
  std::vector<Entry> entries_;
};

}  // namespace kvant::engine
