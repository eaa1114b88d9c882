#include "kvant/core/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvant {
namespace {

// A worker spins this many times before it sleeps: decode steps issue many short loops in a row.
constexpr int kSpinCount = 20'000;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

// Workers of our own: for builds whose OpenMP runtime ThreadSanitizer cannot follow, or without OpenMP.
struct ThreadPool::Impl {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> num_sleeping{0};
  std::atomic<int> num_running{0};
  std::atomic<int64_t> next_task{0};
  int64_t num_tasks = 0;
  const std::function<void(int64_t, int)>* body = nullptr;
  std::atomic<bool> stop{false};

  void drain(int worker) {
    for (int64_t task = next_task.fetch_add(1); task < num_tasks; task = next_task.fetch_add(1)) (*body)(task, worker);
  }

  void work(int worker) {
    uint64_t seen = 0;
    while (true) {
      int spins = 0;
      while (generation.load(std::memory_order_acquire) == seen) {
        if (++spins < kSpinCount) {
          pause_cpu();
          continue;
        }
        std::unique_lock lock(mutex);
        num_sleeping.fetch_add(1);
        wake.wait(lock, [&] { return generation.load() != seen; });
        num_sleeping.fetch_sub(1);
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load()) return;
      drain(worker);
      num_running.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  void start_generation() {
    {
      std::lock_guard lock(mutex);
      generation.fetch_add(1, std::memory_order_acq_rel);
    }
    if (num_sleeping.load() > 0) wake.notify_all();
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  const int count = num_threads > 0 ? num_threads : available_cores();
  for (int worker = 1; worker < count; ++worker) impl_->workers.emplace_back([this, worker] { impl_->work(worker); });
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true);
  impl_->start_generation();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::run_tasks(int64_t num_tasks, const std::function<void(int64_t, int)>& body) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || impl_->workers.empty()) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    return;
  }
  impl_->body = &body;
  impl_->num_tasks = num_tasks;
  impl_->next_task.store(0);
  impl_->num_running.store(static_cast<int>(impl_->workers.size()));
  impl_->start_generation();
  impl_->drain(0);
  for (int spins = 0; impl_->num_running.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinCount)
      pause_cpu();
    else
      std::this_thread::yield();
  }
}

}  // namespace kvant
