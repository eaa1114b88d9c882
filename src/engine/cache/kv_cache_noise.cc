#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/device_memory.h"
#include "engine/cache/kv_cache_impl.h"

namespace kvant::engine {
namespace {

constexpr int64_t kNoiseBytes = int64_t{32} << 20;
/// Without the top bits of sign and exponent no byte makes infinity or NaN, whatever the format.
constexpr uint8_t kSmallNumbers = 0x3f;

}  // namespace

Status KvCacheSet::fill_with_noise() {
  const Stream stream = impl_->stream;
  std::vector<uint8_t> noise(static_cast<size_t>(kNoiseBytes));
  uint32_t state = 1;
  for (uint8_t& byte : noise) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24) & kSmallNumbers;
  }
  KVANT_ASSIGN_OR_RETURN(const DeviceBuffer source, DeviceBuffer::create(memory_of(stream), kNoiseBytes, "noise"));
  KVANT_RETURN_IF_ERROR(copy_bytes(source.data(), noise.data(), kNoiseBytes, stream));
  for (const Layer& layer : impl_->layers) {
    for (const DeviceBuffer* pool : {&layer.base_memory, &layer.exact_memory}) {
      for (int64_t at = 0; at < pool->bytes(); at += kNoiseBytes)
        KVANT_RETURN_IF_ERROR(
            copy_bytes(pool->data() + at, source.data(), std::min(kNoiseBytes, pool->bytes() - at), stream));
    }
  }
  return synchronise(stream);
}

}  // namespace kvant::engine
