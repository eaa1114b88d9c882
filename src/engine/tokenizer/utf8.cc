#include "engine/tokenizer/utf8.h"

#include <algorithm>

namespace kvant::engine {

Utf8Step utf8_step(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Kind::kCharacter, lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Kind::kInvalid, 0, 1};
  const size_t need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range rules out over-long forms, surrogates and values past U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t code_point = lead & (0x7FU >> need);
  for (size_t i = 1; i < need; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, 0, i};
    const uint8_t byte = at(i);
    if (byte < (i == 1 ? low : 0x80) || byte > (i == 1 ? high : 0xBF)) return {Kind::kInvalid, 0, i};
    code_point = code_point << 6 | (byte & 0x3FU);
  }
  return {Kind::kCharacter, code_point, need};
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

size_t utf8_valid_prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Step step = utf8_step(bytes.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) break;
    at += step.length;
  }
  return at;
}

size_t utf8_count(std::string_view bytes) {
  return static_cast<size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace kvant::engine
