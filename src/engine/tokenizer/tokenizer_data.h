#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvant::engine {

/// What a tokenizer is built from, field by field as tokenizer.ggml.* has it. Nothing in here has been checked.
struct TokenizerData {
  /// Values of tokenizer.ggml.token_type.
  enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

  std::string model = "gpt2";
  std::string pretokenizer = "default";
  std::vector<std::string> tokens;
  std::vector<int64_t> token_types;  ///< Empty: all normal.
  std::vector<std::string> merges;   ///< "left right", best first.
  std::optional<int64_t> bos;
  std::optional<int64_t> eos;
  std::vector<int64_t> more_end_ids;  ///< eot, eom
  std::optional<bool> add_bos;
};

}  // namespace kvant::engine
