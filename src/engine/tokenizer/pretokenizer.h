#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/text_rules.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// Normalises a text and splits it into the words inside which merges apply. Immutable; thread-safe.
class Pretokenizer {
 public:
  using Emit = std::function<void(std::string_view)>;

  /// An expression that PCRE2 does not take, or would read otherwise than Oniguruma, is refused.
  static Result<Pretokenizer> make(TextRules rules);
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;

  /// Calls `emit` for each word in order; the words joined are the normalised text unless a stage removes matches.
  /// Bytes that are not valid UTF-8 come as words of one byte. `at_start`: nothing came before this text.
  void split(std::string_view text, bool at_start, const Emit& emit) const;

  /// The expressions in order of application, joined by " then ".
  const std::string& pattern() const { return pattern_; }

 private:
  struct Stage;
  Pretokenizer();
  void split_valid(std::string_view text, size_t stage, const Emit& emit) const;

  std::string pattern_;
  std::vector<NormaliseStep> normalise_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace kvant::engine
