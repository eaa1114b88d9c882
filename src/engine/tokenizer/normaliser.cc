#include "engine/tokenizer/normaliser.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include <utf8proc.h>

#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

/// A Unicode normal form; ASCII text is its own.
std::string normal_form(std::string_view text, int options) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  if (length < 0) return std::string(text);  // Out of memory only: the text is valid UTF-8.
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
  std::free(mapped);
  return out;
}

bool is_space(uint32_t code_point) {
  return (code_point >= 0x9 && code_point <= 0xD) || code_point == 0x20 || code_point == 0x85 || code_point == 0xA0 ||
         code_point == 0x1680 || (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F || code_point == 0x3000;
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  if (from.empty()) return std::string(text);
  while (true) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

size_t leading_space(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = utf8_step(text.substr(length));
    if (step.kind != Utf8Step::Kind::kCharacter || !is_space(step.code_point)) break;
    length += step.length;
  }
  return length;
}

size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    const Utf8Step step = utf8_step(text.substr(begin, end - begin));
    if (step.kind != Utf8Step::Kind::kCharacter || step.length != end - begin || !is_space(step.code_point)) break;
    end = begin;
  }
  return text.size() - end;
}

std::string normalise(std::string_view text, std::span<const NormaliseStep> steps, bool at_start) {
  using Kind = NormaliseStep::Kind;
  std::string out(text);
  for (const NormaliseStep& step : steps) {
    switch (step.kind) {
      case Kind::kNfc: out = normal_form(out, UTF8PROC_COMPOSE); break;
      case Kind::kNfd: out = normal_form(out, UTF8PROC_DECOMPOSE); break;
      case Kind::kNfkc: out = normal_form(out, UTF8PROC_COMPOSE | UTF8PROC_COMPAT); break;
      case Kind::kNfkd: out = normal_form(out, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT); break;
      case Kind::kPrepend:
        if (!out.empty() && (at_start || !step.only_at_start) && !(step.unless_there && out.starts_with(step.to)))
          out.insert(0, step.to);
        break;
      case Kind::kReplace: out = replace_all(out, step.from, step.to); break;
      case Kind::kStripLeft: out.erase(0, leading_space(out)); break;
      case Kind::kStripRight: out.resize(out.size() - trailing_space(out)); break;
    }
  }
  return out;
}

}  // namespace kvant::engine
