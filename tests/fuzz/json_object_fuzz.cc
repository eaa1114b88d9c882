#include "engine/loader/json_object.h"

#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvant::engine;
  const auto json = JsonObject::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json) return 0;
  for (const std::string& key : json->keys()) {
    static_cast<void>(json->size(key));
    static_cast<void>(json->positive(key));
    static_cast<void>(json->text(key));
    static_cast<void>(json->texts(key));
    static_cast<void>(json->numbers(key));
    static_cast<void>(json->ids(key));
    static_cast<void>(json->object(key));
  }
  return 0;
}
