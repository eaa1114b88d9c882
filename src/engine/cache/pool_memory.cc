#include "engine/cache/pool_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace kvant::engine {

Result<PoolMemory> PoolMemory::create(int64_t bytes) {
  PoolMemory memory;
  if (bytes <= 0) return memory;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("cannot reserve {} bytes for the KV cache: {}; use a smaller context or fewer sequences",
                               bytes, std::strerror(errno)));
  }
  // Large pages save most address translations of reads that jump from page to page. A hint: refusal is no error.
  ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = static_cast<size_t>(bytes);
  return memory;
}

PoolMemory::~PoolMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

PoolMemory::PoolMemory(PoolMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PoolMemory& PoolMemory::operator=(PoolMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace kvant::engine
