// Any bytes as the body of a request: it is answered or refused, and every answer is read to its end or dropped midway.
#include <cstddef>
#include <cstdint>
#include <string>

#include "support/fake_host.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static kvant::testing::FakeHost fake("<tool_call>{\"name\":\"f\"}</tool_call>\xF0\x9F");
  if (size == 0) return 0;
  constexpr const char* kPaths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"};
  const kvant::server::HttpResponse response =
      fake.post(kPaths[data[0] % 4], std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  if (!response.stream) return 0;
  int parts = data[0] / 4;
  response.stream([&](std::string_view) { return parts-- != 0; });
  return 0;
}
