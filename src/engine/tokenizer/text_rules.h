#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/core/status.h"

namespace kvant::engine {

/// One change of a text before it is cut into words.
struct NormaliseStep {
  enum class Kind : uint8_t {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kPrepend,  ///< `to` before a text that is not empty.
    kReplace,  ///< Every `from` by `to`.
    kStripLeft,
    kStripRight,
  };
  Kind kind = Kind::kNfc;
  std::string from = {};
  std::string to = {};
  bool unless_there = false;   ///< kPrepend: not when the text begins with `to`.
  bool only_at_start = false;  ///< kPrepend: not after a special token.
};

/// What becomes of a stage's matches.
enum class SplitBehavior : uint8_t { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// One cut of every piece that the stages before left.
struct SplitStage {
  std::string pattern;  ///< Regular expression.
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;    ///< What does not match counts as the match.
  bool of_bytes = false;  ///< Reads bytes, not characters, and may cut between the bytes of one. Only such may follow.
};

/// How a text becomes the words inside which merges apply.
struct TextRules {
  std::vector<NormaliseStep> normalise;
  std::vector<SplitStage> split;
};

/// Text rules of tokenizer.ggml.pre and what else depends on that name.
struct NamedTextRules {
  std::string_view name;
  TextRules rules;
  bool whole_words_first = false;
  bool adds_bos = false;
};
/// An unknown name is refused with the list of known ones.
Result<NamedTextRules> find_text_rules(std::string_view name);

/// The expressions that tokenizer.json knows by names of their own.
std::string_view gpt2_pattern();
std::string_view punctuation_pattern();
/// Digits as a stage after ByteLevel sees them: the spelling of some bytes is one, ² for 0xB2.
std::string_view spelled_digit_pattern();

}  // namespace kvant::engine
