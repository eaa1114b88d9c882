#pragma once

#include <cstdint>
#include <string_view>

namespace kvant {

/// Element type of queries, keys, values and outputs.
enum class DType : uint8_t { kF32, kF16, kBf16 };

constexpr int64_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBf16: return "bf16";
  }
  return "?";
}

}  // namespace kvant
