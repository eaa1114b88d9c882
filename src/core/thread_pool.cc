#include "kvant/core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <thread>

namespace kvant {
namespace {

constexpr std::align_val_t kScratchAlignment{64};

}  // namespace

// What both kinds of pool share; thread_pool_openmp.cc and thread_pool_threads.cc hold the loops.

void ThreadPool::FreeAligned::operator()(std::byte* bytes) const { ::operator delete(bytes, kScratchAlignment); }

std::byte* ThreadPool::scratch(int64_t num_bytes) {
  if (num_bytes > scratch_bytes_) {
    scratch_.reset();
    scratch_bytes_ = 0;
    scratch_.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(num_bytes), kScratchAlignment)));
    scratch_bytes_ = num_bytes;
  }
  return scratch_.get();
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace kvant
