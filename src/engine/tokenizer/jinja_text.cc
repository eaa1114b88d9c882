#include <algorithm>

#include <utf8proc.h>

#include "engine/tokenizer/jinja_value.h"
#include "engine/tokenizer/utf8.h"

namespace kvant::engine::jinja {

namespace {

/// Length of the character at `at`; a byte that begins none counts as one.
size_t step_at(std::string_view bytes, size_t at, uint32_t* code_point = nullptr) {
  const Utf8Step step = utf8_step(bytes.substr(at));
  const bool whole = step.kind == Utf8Step::Kind::kCharacter;
  if (code_point != nullptr) *code_point = whole ? step.code_point : 0;
  return whole ? step.length : 1;
}

size_t step_before(std::string_view bytes, size_t end, uint32_t* code_point) {
  for (size_t length = 1; length <= 4 && length <= end; ++length) {
    const Utf8Step step = utf8_step(bytes.substr(end - length, length));
    if (step.kind == Utf8Step::Kind::kCharacter && step.length == length) {
      *code_point = step.code_point;
      return length;
    }
  }
  *code_point = 0;
  return 1;
}

std::vector<uint32_t> characters_of(const Text& text) {
  std::vector<uint32_t> out;
  for (size_t at = 0; at < text.size();) {
    uint32_t code_point = 0;
    at += step_at(text.bytes, at, &code_point);
    out.push_back(code_point);
  }
  return out;
}

bool is_letter(uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT: return true;
    default: return false;
  }
}

}  // namespace

bool is_python_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t count_characters(std::string_view bytes) {
  size_t count = 0;
  for (size_t at = 0; at < bytes.size(); ++count) at += step_at(bytes, at);
  return count;
}

Text strip(const Text& text, const Text* characters, bool left, bool right) {
  const std::vector<uint32_t> set = characters == nullptr ? std::vector<uint32_t>() : characters_of(*characters);
  const auto strips = [&](uint32_t c) {
    return characters == nullptr ? is_python_space(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0;
  size_t end = text.size();
  uint32_t c = 0;
  while (left && begin < end) {
    const size_t length = step_at(text.bytes, begin, &c);
    if (!strips(c)) break;
    begin += length;
  }
  while (right && begin < end) {
    const size_t length = step_before(text.bytes, end, &c);
    if (!strips(c)) break;
    end -= length;
  }
  return text.slice(begin, end - begin);
}

std::vector<Text> split(const Text& text, const Text* separator, int64_t max_splits) {
  std::vector<Text> out;
  const auto may_split = [&] { return max_splits < 0 || static_cast<int64_t>(out.size()) < max_splits; };
  if (separator != nullptr) {
    size_t begin = 0;
    while (may_split()) {
      const size_t found = text.bytes.find(separator->bytes, begin);
      if (found == std::string::npos) break;
      out.push_back(text.slice(begin, found - begin));
      begin = found + separator->size();
    }
    out.push_back(text.slice(begin, text.size() - begin));
    return out;
  }
  Text rest = strip(text, nullptr, true, max_splits < 0);
  size_t begin = 0;
  while (begin < rest.size()) {
    uint32_t c = 0;
    size_t end = begin;
    if (!may_split()) {
      out.push_back(rest.slice(begin, rest.size() - begin));
      break;
    }
    while (end < rest.size()) {
      const size_t length = step_at(rest.bytes, end, &c);
      if (is_python_space(c)) break;
      end += length;
    }
    out.push_back(rest.slice(begin, end - begin));
    while (end < rest.size()) {
      const size_t length = step_at(rest.bytes, end, &c);
      if (!is_python_space(c)) break;
      end += length;
    }
    begin = end;
  }
  return out;
}

Text replace_all(const Text& text, const Text& from, const Text& to, int64_t max_count) {
  Text out;
  size_t begin = 0;
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    const size_t found = text.bytes.find(from.bytes, begin);
    if (found == std::string::npos) break;
    out.append(text.slice(begin, found - begin));
    out.append(to);
    begin = found + from.size();
  }
  out.append(text.slice(begin, text.size() - begin));
  return out;
}

Text change_case(const Text& text, Case to) {
  Text out;
  bool word_begins = true;
  for (size_t at = 0; at < text.size();) {
    uint32_t c = 0;
    const size_t length = step_at(text.bytes, at, &c);
    const bool upper = to == Case::kUpper || (to != Case::kLower && word_begins);
    const bool broken = length == 1 && static_cast<unsigned char>(text.bytes[at]) >= 0x80;
    if (broken) {
      out.append(text.slice(at, 1));
    } else {
      std::string mapped;
      const auto point = static_cast<utf8proc_int32_t>(c);
      append_utf8(mapped, static_cast<uint32_t>(upper ? utf8proc_toupper(point) : utf8proc_tolower(point)));
      out.append(mapped, text.origin[at]);
    }
    word_begins = to == Case::kTitle && !is_letter(c);
    at += length;
  }
  return out;
}

}  // namespace kvant::engine::jinja
