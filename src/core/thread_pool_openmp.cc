#include "kvant/core/thread_pool.h"

#include <omp.h>

#include <atomic>

namespace kvant {

// oneDNN runs on the OpenMP team of the thread that calls it. Loops run on that same team: two sets of threads that
// both spin between regions would take each other's cores.
struct ThreadPool::Impl {
  int num_threads = 1;
  alignas(64) std::atomic<int64_t> next_task{0};
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  impl_->num_threads = num_threads > 0 ? num_threads : available_cores();
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const { return impl_->num_threads; }

void ThreadPool::run_tasks(int64_t num_tasks, const std::function<void(int64_t, int)>& body) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || impl_->num_threads == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    return;
  }
  std::atomic<int64_t>& next_task = impl_->next_task;
  next_task.store(0, std::memory_order_relaxed);
  // All threads of the team take part even when there are fewer tasks: a team that changes size is rebuilt.
#pragma omp parallel num_threads(impl_->num_threads)
  {
    const int worker = omp_get_thread_num();
    for (int64_t task = next_task.fetch_add(1, std::memory_order_relaxed); task < num_tasks;
         task = next_task.fetch_add(1, std::memory_order_relaxed)) {
      body(task, worker);
    }
  }
}

}  // namespace kvant
