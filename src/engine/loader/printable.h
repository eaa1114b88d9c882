#pragma once

#include <string>
#include <string_view>

namespace kvant::engine {

/// Untrusted text for a one-line message: shortened, and everything but printable ASCII replaced by '?'.
inline std::string printable(std::string_view text) {
  constexpr size_t kLongest = 64;
  std::string out(text.substr(0, kLongest));
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  if (text.size() > kLongest) out += "...";
  return out;
}

}  // namespace kvant::engine
