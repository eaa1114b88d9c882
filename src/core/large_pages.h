#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace kvant {

/// A mapping of its own, zeros, asked to come in large pages (2 MB): reads that stream or jump about then wait for few
/// address translations. Memory counts when it is touched. Null = none, errno says why. Mappings made one after the
/// other lie side by side and share large pages.
void* map_large_pages(size_t bytes);
void unmap_large_pages(void* data, size_t bytes);

/// Moves what is filled by now into large pages where it came in small ones, because the mapping beside it did not
/// exist yet. A hint; takes Linux 6.1.
void gather_large_pages(const void* data, size_t bytes);

/// For what stays: weights, long buffers.
template <class T>
class LargePageAllocator {
 public:
  using value_type = T;
  LargePageAllocator() = default;
  template <class U>
  LargePageAllocator(const LargePageAllocator<U>&) {}  // NOLINT(google-explicit-constructor): as containers need it

  T* allocate(size_t count) {
    void* data = map_large_pages(count * sizeof(T));
    if (data == nullptr) throw std::bad_alloc();
    return static_cast<T*>(data);
  }
  void deallocate(T* data, size_t count) { unmap_large_pages(data, count * sizeof(T)); }
  friend bool operator==(LargePageAllocator, LargePageAllocator) { return true; }
};
template <class T>
using LargePageVector = std::vector<T, LargePageAllocator<T>>;

}  // namespace kvant
