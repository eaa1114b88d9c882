#pragma once

#include "core/float_bits.h"
#include "engine/loader/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::testing {

/// Little-endian bytes appended one field after the other.
class ByteSink {
 public:
  template <class T>
  ByteSink& put(T value) {
    const auto* first = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), first, first + sizeof(T));
    return *this;
  }
  /// Length as u64, then the text.
  ByteSink& put_text(std::string_view text) {
    put<uint64_t>(text.size());
    return put_raw(std::as_bytes(std::span(text)));
  }
  ByteSink& put_raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  ByteSink& pad_to(size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Builds a GGUF image in memory. Metadata comes first, in the order of the calls.
class GgufWriter {
 public:
  void add_u32(std::string_view key, uint32_t value) { entry(key, 4).put(value); }
  void add_i32(std::string_view key, int32_t value) { entry(key, 5).put(value); }
  void add_f32(std::string_view key, float value) { entry(key, 6).put(value); }
  void add_bool(std::string_view key, bool value) { entry(key, 7).put<uint8_t>(value ? 1 : 0); }
  void add_string(std::string_view key, std::string_view value) { entry(key, 8).put_text(value); }
  void add_u64(std::string_view key, uint64_t value) { entry(key, 10).put(value); }
  void add_strings(std::string_view key, const std::vector<std::string>& values) {
    ByteSink& sink = entry(key, 9).put<uint32_t>(8).put<uint64_t>(values.size());
    for (const std::string& value : values) sink.put_text(value);
  }
  void add_i32s(std::string_view key, const std::vector<int32_t>& values) { numbers(key, 5, values); }
  void add_f32s(std::string_view key, const std::vector<float>& values) { numbers(key, 6, values); }

  /// `shape`: fastest-varying dimension first.
  void add_tensor(std::string_view name, const std::vector<int64_t>& shape, engine::GgufType type,
                  std::span<const std::byte> data) {
    records_.put_text(name).put(static_cast<uint32_t>(shape.size()));
    for (const int64_t dim : shape) records_.put(static_cast<uint64_t>(dim));
    records_.put(static_cast<uint32_t>(type)).put<uint64_t>(data_.bytes().size());
    data_.put_raw(data).pad_to(kAlignment);
    ++num_tensors_;
  }
  /// Encodes fp32 values as F32, F16, BF16 or Q8_0.
  void add_tensor(std::string_view name, const std::vector<int64_t>& shape, engine::GgufType type,
                  std::span<const float> values) {
    add_tensor(name, shape, type, std::span<const std::byte>(encode(type, values)));
  }

  std::vector<std::byte> bytes(uint32_t version = 3) const {
    ByteSink out;
    out.put<uint32_t>(0x46554747).put(version).put<uint64_t>(num_tensors_).put<uint64_t>(num_entries_);
    out.put_raw(metadata_.bytes()).put_raw(records_.bytes());
    if (num_tensors_ > 0) out.pad_to(kAlignment).put_raw(data_.bytes());
    return out.bytes();
  }

  static std::vector<std::byte> encode(engine::GgufType type, std::span<const float> values) {
    ByteSink out;
    switch (type) {
      case engine::GgufType::kF32: out.put_raw(std::as_bytes(values)); break;
      case engine::GgufType::kF16:
        for (const float value : values) out.put(float_to_f16(value));
        break;
      case engine::GgufType::kBf16:
        for (const float value : values) out.put(float_to_bf16(value));
        break;
      case engine::GgufType::kQ8_0:
        for (size_t i = 0; i + 32 <= values.size(); i += 32) encode_q8_0(values.subspan(i, 32), out);
        break;
      default: KVANT_CHECK(!"GgufWriter encodes F32, F16, BF16 and Q8_0");
    }
    return out.bytes();
  }

 private:
  static constexpr size_t kAlignment = 32;

  static void encode_q8_0(std::span<const float> block, ByteSink& out) {
    float largest = 0.0f;
    for (const float value : block) largest = std::max(largest, std::fabs(value));
    const float scale = largest / 127.0f;
    const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    out.put(float_to_f16(scale));
    for (const float value : block) out.put(static_cast<int8_t>(std::nearbyint(value * inverse)));
  }

  ByteSink& entry(std::string_view key, uint32_t type) {
    ++num_entries_;
    return metadata_.put_text(key).put(type);
  }

  template <class T>
  void numbers(std::string_view key, uint32_t type, const std::vector<T>& values) {
    ByteSink& sink = entry(key, 9).put(type).template put<uint64_t>(values.size());
    for (const T value : values) sink.put(value);
  }

  uint64_t num_entries_ = 0;
  uint64_t num_tensors_ = 0;
  ByteSink metadata_, records_, data_;
};

}  // namespace kvant::testing
