#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace kvant {

/// Fixed number of threads for parallel loops. `parallel_for` is not re-entrant and is called from one thread at a
/// time; calling it always from the same thread is fastest, because the workers belong to the OpenMP team of the
/// caller.
class ThreadPool {
 public:
  /// `num_threads` counts the calling thread; 0 = one per available core.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  /// Runs `body(task, worker)` for every task in [0, num_tasks); tasks are handed out in order, worker is in
  /// [0, num_threads). Returns when all are done. Allocates nothing.
  template <class Body>
  void parallel_for(int64_t num_tasks, Body&& body) {
    // A reference fits the small buffer of std::function; a copy of a closure often would not.
    run_tasks(num_tasks, std::ref(body));
  }

  /// At least `num_bytes` of 64-byte aligned memory for the caller's loops, undefined at first and valid until the next
  /// call. Allocates only when it must grow. Called by the thread that calls `parallel_for`.
  std::byte* scratch(int64_t num_bytes);

 private:
  void run_tasks(int64_t num_tasks, const std::function<void(int64_t task, int worker)>& body);

  struct Impl;
  std::unique_ptr<Impl> impl_;
  struct FreeAligned {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, FreeAligned> scratch_;
  int64_t scratch_bytes_ = 0;
};

/// Cores this process may run on.
int available_cores();

}  // namespace kvant
