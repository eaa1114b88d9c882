#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvant::engine {

/// Byte-level vocabularies spell each byte as one printable character: printable Latin-1 bytes as themselves, the other
/// 68 as U+0100 onwards in byte order. Gives the bytes that `spelling` stands for, or nothing when a character is not
/// of this alphabet.
std::optional<std::string> bytes_from_spelling(std::string_view spelling);

}  // namespace kvant::engine
