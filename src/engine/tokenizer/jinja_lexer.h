#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvant/core/status.h"

namespace kvant::engine::jinja {

enum class TokenKind : unsigned char {
  kText,
  kOutputBegin,
  kOutputEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kInteger,
  kFloat,
  kString,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  ///< Strings: escapes resolved. Operators: as written.
  int line = 1;
};

/// Splits a template as Jinja does with trim_blocks and lstrip_blocks on (what Hugging Face sets). Whitespace control
/// is done here. The last token is kEnd.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace kvant::engine::jinja
