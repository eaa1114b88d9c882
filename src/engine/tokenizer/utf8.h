#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvant::engine {

/// What stands at the start of some bytes.
struct Utf8Step {
  enum class Kind : uint8_t {
    kCharacter,   ///< One whole character.
    kIncomplete,  ///< A correct beginning; more bytes could complete it.
    kInvalid,     ///< No continuation can make it valid.
  };
  Kind kind = Kind::kInvalid;
  uint32_t code_point = 0;  ///< Of a whole character.
  size_t length = 1;        ///< Bytes of the character, of the beginning, or of the invalid part (at least 1).
};

/// Decodes strictly (no surrogates, no over-long forms, at most U+10FFFF). An invalid part is a maximal subpart as
/// Unicode recommends for U+FFFD replacement. `bytes` must not be empty.
Utf8Step utf8_step(std::string_view bytes);

void append_utf8(std::string& out, uint32_t code_point);

/// Length of the longest valid prefix.
size_t utf8_valid_prefix(std::string_view bytes);

/// Characters that begin in the bytes, which may hold invalid parts.
size_t utf8_count(std::string_view bytes);

}  // namespace kvant::engine
