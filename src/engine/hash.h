#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvant::engine {

/// 64-bit FNV-1a over whatever is added: names things in caches, protects nothing.
class Hasher {
 public:
  void add(std::span<const std::byte> bytes) {
    for (std::byte byte : bytes) state_ = (state_ ^ static_cast<uint64_t>(byte)) * 0x100000001b3ull;
  }
  void add(std::string_view text) {
    add_value(text.size());
    add(std::as_bytes(std::span(text)));
  }
  /// A few pieces, spread evenly: enough to tell large contents apart without reading them.
  void add_samples(std::span<const std::byte> bytes) {
    constexpr size_t kSampleBytes = 64, kSamples = 4;
    const size_t stride = std::max(kSampleBytes, bytes.size() / kSamples);
    for (size_t offset = 0; offset < bytes.size(); offset += stride)
      add(bytes.subspan(offset, std::min(kSampleBytes, bytes.size() - offset)));
  }
  template <class T>
  void add_value(const T& value) {
    add(std::as_bytes(std::span(&value, 1)));
  }

  /// 16 hexadecimal digits.
  std::string hex() const;

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace kvant::engine
