#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/text_rules.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// U+2581, which stands for a space in SentencePiece's tokens.
inline constexpr const char* kUnderline = "\u2581";

/// A token that is found in text as it stands, before anything else happens to the text.
struct AddedToken {
  int64_t id = 0;
  bool special = true;       ///< Steers the model; decodes to nothing unless asked for.
  bool strip_left = false;   ///< Takes the white space before it along.
  bool strip_right = false;  ///< The same after it.
  bool single_word = false;  ///< Not inside or at the edge of a word.
};

/// How a tokenizer turns text into the symbols that merges work on, and back.
struct TokenizerRules {
  std::string name;  ///< For people.
  TextRules text;
  bool byte_level = true;             ///< Symbols are bytes in the spelling of byte_alphabet.h, else characters.
  bool byte_fallback = false;         ///< A character without a token becomes its bytes' tokens "<0xE2>".
  bool fuse_unknown = false;          ///< Neighbouring characters without a token become one unknown token.
  bool whole_words_first = false;     ///< A word that is a token as it stands is not built by merges.
  bool spaces_as_underlines = false;  ///< U+2581 in a token stands for a space.
  bool strips_first_space = false;    ///< Decoding drops one space at the start.
  bool adds_bos = false;              ///< Before a plain prompt, unless the file says otherwise.
};

/// What a tokenizer is built from. Nothing in here has been checked.
struct TokenizerData {
  /// Values of tokenizer.ggml.token_type.
  enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

  std::string model = "gpt2";                                    ///< tokenizer.ggml.model
  std::string pretokenizer = "default";                          ///< tokenizer.ggml.pre
  std::optional<TokenizerRules> rules;                           ///< In place of `model` and `pretokenizer`.
  std::vector<std::string> tokens;                               ///< An id without a token has an empty one.
  std::vector<int64_t> token_types;                              ///< Empty: all normal.
  std::vector<double> scores;                                    ///< Of model "llama", which has no merges.
  bool add_space_prefix = true;                                  ///< Of model "llama".
  std::vector<std::string> merges;                               ///< "left right", best first.
  std::vector<std::pair<std::string, std::string>> merge_pairs;  ///< The same, for tokens with spaces in them.
  std::optional<std::vector<AddedToken>> added;  ///< Without: tokens of the types control and user-defined.
  std::optional<int64_t> bos;
  std::optional<int64_t> eos;
  std::optional<int64_t> unknown;
  std::vector<int64_t> more_end_ids;  ///< eot, eom
  std::optional<bool> add_bos;
};

/// Rules of a tokenizer that is described by names. Unknown names are refused.
Result<TokenizerRules> rules_of_names(const TokenizerData& data);

/// "left right" as two tokens; nothing when it is not that.
std::optional<std::pair<std::string, std::string>> split_merge(std::string_view line);

/// Merges that give what SentencePiece gives by scores: every pair of tokens that joins to a token, the best score
/// first, then the longer left and right part.
std::vector<std::pair<std::string, std::string>> merges_from_scores(const TokenizerData& data);

}  // namespace kvant::engine
