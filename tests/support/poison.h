#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvant/attn/kv_cache.h"

namespace kvant::test {

/// NaN in every format: f32, f16, bf16, e4m3, e5m2 and NVFP4 block scales.
inline constexpr uint8_t kNanByte = 0xff;
/// A page-table entry that no pool holds; whoever reads through it reads out of bounds.
inline constexpr int32_t kPoisonPage = attn::kExactPageBit - 1;

/// Bytes between two guards; fresh ones hold NaN.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size) : bytes_(size + 2 * kGuard, std::byte{kGuardByte}), size_(size) {
    std::memset(data(), kNanByte, size);
  }
  void* data() { return bytes_.data() + kGuard; }
  size_t size() const { return size_; }
  bool guards_intact() const {
    for (size_t i = 0; i < kGuard; ++i)
      if (bytes_[i] != std::byte{kGuardByte} || bytes_[kGuard + size_ + i] != std::byte{kGuardByte}) return false;
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kGuardByte = 0x5c;
  std::vector<std::byte> bytes_;
  size_t size_;
};

}  // namespace kvant::test
