#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvant::engine {

/// Finds stop strings in streamed text, also across pieces. Holds back only what may still become a stop string.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops);

  /// Appends text and returns what may be shown. Once a stop string is found, what precedes it has been returned and
  /// nothing more ever is.
  std::string push(std::string_view text);
  /// The held text: the stream has ended without completing a stop string.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  size_t held_length() const;

  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kvant::engine
