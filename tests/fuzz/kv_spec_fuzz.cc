#include "kvant/attn/kv_spec.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvant::attn;
  const auto spec = parse_kv_spec(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!spec) return 0;
  const auto again = parse_kv_spec(spec->to_string());
  if (!again || *again != *spec) std::abort();
  return 0;
}
