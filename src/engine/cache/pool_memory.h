#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/core/status.h"

namespace kvant::engine {

/// Zeroed host memory whose pages cost nothing until they are written. Movable owner.
class PoolMemory {
 public:
  static Result<PoolMemory> create(int64_t bytes);

  PoolMemory() = default;
  ~PoolMemory();
  PoolMemory(PoolMemory&& other) noexcept;
  PoolMemory& operator=(PoolMemory&& other) noexcept;
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvant::engine
