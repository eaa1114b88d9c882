#pragma once

#include <span>
#include <string_view>

namespace kvant::engine::jinja {

enum class LibraryKind : unsigned char { kFilter, kTest, kMethod, kFunction };

/// A filter, test, method or function and the arguments it takes, so that the parser can refuse others.
struct LibraryEntry {
  LibraryKind kind;
  std::string_view name;
  int min_arguments = 0;
  int max_arguments = 0;
  /// Names that arguments may have, in the order of positions, separated by spaces.
  std::string_view keywords = {};
};

/// Null when there is none.
const LibraryEntry* find_entry(LibraryKind kind, std::string_view name);
std::string_view to_string(LibraryKind kind);

/// Position of a keyword among an entry's names, or -1.
int keyword_position(const LibraryEntry& entry, std::string_view keyword);

}  // namespace kvant::engine::jinja
