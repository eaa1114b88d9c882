// Any bytes as a tokenizer.json: it is refused, or encodes and decodes text.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvant::engine;
  const auto json = JsonObject::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json) return 0;
  auto read = read_tokenizer_json(*json);
  if (!read) return 0;
  const auto tokenizer = Tokenizer::from_data(*std::move(read));
  if (!tokenizer) return 0;
  const auto ids = tokenizer->encode_with_specials("Hello <s> w\xC3\xB6rld\xFF 123\n\n");
  static_cast<void>(tokenizer->decode(ids, true));
  return 0;
}
