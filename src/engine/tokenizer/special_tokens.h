#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvant::engine {

/// Finds added tokens in text: the leftmost first, the longest among those that start at the same place.
class SpecialTokens {
 public:
  struct Flags {
    bool strip_left = false;
    bool strip_right = false;
    bool single_word = false;
  };
  struct Hit {
    size_t position;
    size_t length;
    int32_t id;
    Flags flags;
  };

  /// `text` must outlive this. Empty texts are ignored; the first of two equal ones stays.
  void add(std::string_view text, int32_t id, Flags flags);
  /// The first hit at or after `from`; position == text.size() when there is none.
  Hit find(std::string_view text, size_t from) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Token {
    int32_t id;
    Flags flags;
  };
  std::unordered_map<std::string_view, Token> tokens_;
  std::array<std::vector<size_t>, 256> lengths_;  ///< By first byte, longest first.
};

}  // namespace kvant::engine
