#pragma once

#include <cstdint>

namespace kvant::test {

/// Counts, while it lives and on its thread, what a captured step must not do: allocations in host memory, and CUDA
/// calls that allocate, free, copy with the host or wait. One at a time.
class AllocGuard {
 public:
  AllocGuard();
  ~AllocGuard();
  AllocGuard(const AllocGuard&) = delete;
  AllocGuard& operator=(const AllocGuard&) = delete;

  int64_t host_allocations() const;
  int64_t cuda_calls() const;
};

}  // namespace kvant::test
