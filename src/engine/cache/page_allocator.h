#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant::engine {

/// Hands out page ids of one pool. A page may have several holders; it is free again when the last one lets go.
class PageAllocator {
 public:
  PageAllocator() = default;
  explicit PageAllocator(int32_t num_pages);

  int32_t num_pages() const { return static_cast<int32_t>(holders_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t holders(int32_t page) const { return holders_[static_cast<size_t>(page)]; }
  int32_t num_used() const { return num_pages() - num_free(); }

  /// A page with one holder. There must be a free one.
  int32_t allocate();
  void add_holder(int32_t page);
  void release(int32_t page);

 private:
  std::vector<int32_t> free_;  ///< A stack; the lowest id is on top at first.
  std::vector<int32_t> holders_;
};

}  // namespace kvant::engine
