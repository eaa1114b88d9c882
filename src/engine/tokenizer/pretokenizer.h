#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/core/status.h"

namespace kvant::engine {

/// Splits text into the words inside which BPE merges, as tokenizer.ggml.pre asks. Immutable; thread-safe.
class Pretokenizer {
 public:
  /// An unknown name is refused with the list of known ones.
  static Result<Pretokenizer> make(std::string_view name);
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;

  /// Calls `emit` for each word in order; the words joined are the text (after NFC where the tokenizer normalises).
  /// Bytes that are not valid UTF-8 come as words of one byte.
  void split(std::string_view text, const std::function<void(std::string_view)>& emit) const;

  const std::string& name() const { return name_; }
  /// The expressions in order of application, joined by " then ".
  const std::string& pattern() const { return pattern_; }
  /// A word that is a token as it stands is not built by merges.
  bool whole_words_first() const { return whole_words_first_; }
  /// The tokenizer puts BOS before a plain prompt unless the file says otherwise.
  bool adds_bos_by_default() const { return adds_bos_by_default_; }

 private:
  struct Regex;
  Pretokenizer();
  void split_valid(std::string_view text, size_t stage, const std::function<void(std::string_view)>& emit) const;

  std::string name_;
  std::string pattern_;
  std::vector<std::unique_ptr<Regex>> stages_;
  bool normalise_nfc_ = false;
  bool whole_words_first_ = false;
  bool adds_bos_by_default_ = false;
};

}  // namespace kvant::engine
