/// Reads strings from standard input, each as a little-endian uint32 length and its bytes, and writes for each a line
/// of token ids. Usage: kvant_tokenize MODEL.gguf [--specials]. Used by tests/golden/compare_tokenizers.py.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: kvant_tokenize MODEL.gguf [--specials]\n");
    return 2;
  }
  const bool specials = argc > 2 && std::string_view(argv[2]) == "--specials";
  const auto file = kvant::engine::GgufFile::open(argv[1]);
  if (!file) {
    fmt::print(stderr, "{}\n", file.error().to_string());
    return 1;
  }
  const auto tokenizer = kvant::engine::Tokenizer::from_gguf(*file);
  if (!tokenizer) {
    fmt::print(stderr, "{}\n", tokenizer.error().to_string());
    return 1;
  }
  uint8_t header[4];
  std::string text;
  while (std::fread(header, 1, sizeof header, stdin) == sizeof header) {
    const size_t length = header[0] | header[1] << 8 | header[2] << 16 | static_cast<uint32_t>(header[3]) << 24;
    text.resize(length);
    if (std::fread(text.data(), 1, length, stdin) != length) return 1;
    const std::vector<int32_t> ids = specials ? tokenizer->encode_with_specials(text) : tokenizer->encode(text);
    fmt::print("{}\n", fmt::join(ids, " "));
  }
  return 0;
}
