#include "engine/tokenizer/jinja_lexer.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "engine/tokenizer/utf8.h"

namespace kvant::engine::jinja {

namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool all_space(std::string_view text) { return std::all_of(text.begin(), text.end(), is_space); }

/// \r\n and \r become \n; one newline at the very end is dropped.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_newlines(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size() && error_.ok()) root();
    if (!error_.ok()) return failure(error_);
    emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool starts(std::string_view text) const { return rest().starts_with(text); }

  void emit(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + count, '\n'));
    at_ += count;
  }

  void skip_space() {
    size_t count = 0;
    while (at_ + count < source_.size() && is_space(source_[at_ + count])) ++count;
    advance(count);
  }

  void fail(const std::string& what) {
    if (error_.ok())
      error_ = Status(StatusCode::kInvalidArgument, fmt::format("chat template, line {}: {}", line_, what));
    at_ = source_.size();
  }

  /// Text up to the next tag, then the tag.
  void root() {
    size_t open = at_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 == source_.size()) {
        emit(TokenKind::kText, std::string(rest()));
        return advance(source_.size() - at_);
      }
      const char second = source_[open + 1];
      if (second == '{' || second == '%' || second == '#') break;
      ++open;
    }
    const char type = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    const bool line_starts = at_ == 0 || source_[at_ - 1] == '\n';
    std::string_view text = std::string_view(source_).substr(at_, open - at_);
    if (sign == '-') {
      while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    } else if (sign != '+' && type != '{') {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_begin > 0 || line_starts) && all_space(text.substr(line_begin))) text = text.substr(0, line_begin);
    }
    if (!text.empty()) emit(TokenKind::kText, std::string(text));
    advance(open - at_ + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (type == '#') return comment();
    emit(type == '{' ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
    expression(type == '{');
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return fail("a comment has no '#}'");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2 - at_);
    after_block(sign);
  }

  /// What the sign before '%}' or '#}' does to the text that follows.
  void after_block(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && starts("\n")) {
      advance(1);
    }
  }

  bool try_end(bool is_output) {
    const std::string_view close = is_output ? "}}" : "%}";
    char sign = '\0';
    if (starts("-") || (!is_output && starts("+"))) sign = source_[at_];
    if (!rest().substr(sign == '\0' ? 0 : 1).starts_with(close)) return false;
    emit(is_output ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
    advance(close.size() + (sign == '\0' ? 0 : 1));
    if (is_output) {
      if (sign == '-') skip_space();
    } else {
      after_block(sign);
    }
    return true;
  }

  void expression(bool is_output) {
    std::string open_brackets;
    while (true) {
      skip_space();
      if (at_ >= source_.size()) return fail(is_output ? "'{{' has no '}}'" : "'{%' has no '%}'");
      if (open_brackets.empty() && try_end(is_output)) return;
      const char c = source_[at_];
      if (is_name_start(c)) {
        size_t count = 1;
        while (at_ + count < source_.size() && (is_name_start(source_[at_ + count]) || is_digit(source_[at_ + count])))
          ++count;
        emit(TokenKind::kName, source_.substr(at_, count));
        advance(count);
      } else if (is_digit(c)) {
        number();
      } else if (c == '"' || c == '\'') {
        string(c);
      } else if (!symbol(open_brackets)) {
        return;
      }
    }
  }

  void number() {
    size_t count = 0;
    const auto digits = [&] {
      while (at_ + count < source_.size() && (is_digit(source_[at_ + count]) || source_[at_ + count] == '_')) ++count;
    };
    digits();
    TokenKind kind = TokenKind::kInteger;
    if (at_ + count + 1 < source_.size() && source_[at_ + count] == '.' && is_digit(source_[at_ + count + 1])) {
      kind = TokenKind::kFloat;
      ++count;
      digits();
    }
    size_t exponent = at_ + count;
    if (exponent < source_.size() && (source_[exponent] | 0x20) == 'e') {
      ++exponent;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        kind = TokenKind::kFloat;
        count = exponent - at_;
        digits();
      }
    }
    std::string text = source_.substr(at_, count);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    emit(kind, std::move(text));
    advance(count);
  }

  void string(char quote) {
    std::string out;
    size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] != '\\' || i + 1 >= source_.size()) {
        out.push_back(source_[i++]);
        continue;
      }
      i = escape(i + 1, out);
    }
    if (i >= source_.size()) return fail("a string has no closing quote");
    emit(TokenKind::kString, std::move(out));
    advance(i + 1 - at_);
  }

  /// Resolves the escape whose letter is at `i`; returns the position behind it.
  size_t escape(size_t i, std::string& out) {
    const char c = source_[i];
    const auto simple = [&](char value) {
      out.push_back(value);
      return i + 1;
    };
    switch (c) {
      case 'n': return simple('\n');
      case 't': return simple('\t');
      case 'r': return simple('\r');
      case 'b': return simple('\b');
      case 'f': return simple('\f');
      case 'v': return simple('\v');
      case 'a': return simple('\a');
      case '\\': return simple('\\');
      case '\'': return simple('\'');
      case '"': return simple('"');
      case '\n': return i + 1;
      case 'x': return hex(i, 2, out);
      case 'u': return hex(i, 4, out);
      case 'U': return hex(i, 8, out);
      default: out.push_back('\\'); return simple(c);
    }
  }

  size_t hex(size_t i, size_t digits, std::string& out) {
    uint32_t value = 0;
    for (size_t k = 1; k <= digits; ++k) {
      const char c = i + k < source_.size() ? source_[i + k] : '\0';
      uint32_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<uint32_t>(c - '0');
      } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        digit = static_cast<uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        fail(fmt::format("'\\{}' needs {} hexadecimal digits", source_[i], digits));
        return source_.size();
      }
      value = value << 4 | digit;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      fail(fmt::format("'\\{}' gives U+{:X}, which is no character", source_[i], value));
      return source_.size();
    }
    append_utf8(out, value);
    return i + digits + 1;
  }

  /// An operator or bracket; brackets must close in order.
  bool symbol(std::string& open_brackets) {
    static constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view op : kLong) {
      if (!starts(op)) continue;
      emit(TokenKind::kOperator, std::string(op));
      advance(op.size());
      return true;
    }
    const char c = source_[at_];
    if (std::string_view("+-*/%~<>=.,:|()[]{}").find(c) == std::string_view::npos) {
      const auto byte = static_cast<unsigned char>(c);
      fail(byte >= 0x20 && byte < 0x7F ? fmt::format("unexpected '{}'", c)
                                       : fmt::format("unexpected byte 0x{:02X}", byte));
      return false;
    }
    if (c == '(') open_brackets.push_back(')');
    if (c == '[') open_brackets.push_back(']');
    if (c == '{') open_brackets.push_back('}');
    if (c == ')' || c == ']' || c == '}') {
      if (open_brackets.empty() || open_brackets.back() != c) {
        fail(fmt::format("unexpected '{}'", c));
        return false;
      }
      open_brackets.pop_back();
    }
    emit(TokenKind::kOperator, std::string(1, c));
    advance(1);
    return true;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  Status error_;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace kvant::engine::jinja
