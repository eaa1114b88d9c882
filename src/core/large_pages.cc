#include "core/large_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace kvant {
namespace {

constexpr uintptr_t kLargePage = uintptr_t{2} << 20;
/// Less is not worth two calls of the kernel.
constexpr size_t kSmallest = size_t{64} << 10;
#ifdef MADV_COLLAPSE
constexpr int kGather = MADV_COLLAPSE;
#else
constexpr int kGather = 25;  // Headers older than the kernel do not name it.
#endif

/// One large page at a time: one that reaches past the end of its mapping is refused, the others are not.
void advise(const void* data, size_t bytes, int advice) {
  if (bytes < kSmallest) return;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  for (uintptr_t page = begin / kLargePage * kLargePage; page < begin + bytes; page += kLargePage)
    ::madvise(reinterpret_cast<void*>(page), kLargePage, advice);
}

}  // namespace

void* map_large_pages(size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  advise(data, bytes, MADV_HUGEPAGE);
  return data;
}

void unmap_large_pages(void* data, size_t bytes) { ::munmap(data, bytes); }

void gather_large_pages(const void* data, size_t bytes) { advise(data, bytes, kGather); }

}  // namespace kvant
