#include "engine/cache/page_allocator.h"

#include "kvant/core/status.h"

namespace kvant::engine {

PageAllocator::PageAllocator(int32_t num_pages) : holders_(static_cast<size_t>(num_pages), 0) {
  free_.reserve(static_cast<size_t>(num_pages));
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PageAllocator::allocate() {
  KVANT_CHECK(!free_.empty());
  const int32_t page = free_.back();
  free_.pop_back();
  holders_[static_cast<size_t>(page)] = 1;
  return page;
}

void PageAllocator::add_holder(int32_t page) {
  KVANT_CHECK(holders_[static_cast<size_t>(page)] > 0);
  ++holders_[static_cast<size_t>(page)];
}

void PageAllocator::release(int32_t page) {
  int32_t& holders = holders_[static_cast<size_t>(page)];
  KVANT_CHECK(holders > 0);
  if (--holders == 0) free_.push_back(page);
}

}  // namespace kvant::engine
