#include "engine/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {

constexpr int kNumShifted = 68;

constexpr bool spells_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

constexpr std::array<uint8_t, kNumShifted> make_shifted() {
  std::array<uint8_t, kNumShifted> bytes{};
  size_t count = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (!spells_itself(byte)) bytes[count++] = static_cast<uint8_t>(byte);
  }
  return bytes;
}

constexpr std::array<uint8_t, kNumShifted> kShifted = make_shifted();

}  // namespace

std::optional<std::string> bytes_from_spelling(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Step step = utf8_step(spelling);
    if (step.kind != Utf8Step::Kind::kCharacter) return std::nullopt;
    const uint32_t code_point = step.code_point;
    if (code_point < 0x100 && spells_itself(static_cast<int>(code_point))) {
      bytes.push_back(static_cast<char>(code_point));
    } else if (code_point >= 0x100 && code_point < 0x100 + kNumShifted) {
      bytes.push_back(static_cast<char>(kShifted[code_point - 0x100]));
    } else {
      return std::nullopt;
    }
    spelling.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace kvant::engine
