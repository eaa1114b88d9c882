/// Reads strings from standard input, each as a little-endian uint32 length and its bytes, and writes for each a line
/// of token ids. Usage: kvant_tokenize MODEL.gguf|FOLDER [--specials]. Used by tests/golden/compare_tokenizers.py.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/tokenizer/tokenizer.h"

namespace {

kvant::Result<kvant::engine::Tokenizer> read_tokenizer(const std::filesystem::path& path) {
  using namespace kvant::engine;
  if (std::filesystem::is_directory(path)) return Tokenizer::from_folder(path);
  KVANT_ASSIGN_OR_FAIL(const GgufFile file, GgufFile::open(path));
  return Tokenizer::from_gguf(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: kvant_tokenize MODEL.gguf|FOLDER [--specials]\n");
    return 2;
  }
  const bool specials = argc > 2 && std::string_view(argv[2]) == "--specials";
  const auto tokenizer = read_tokenizer(argv[1]);
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
