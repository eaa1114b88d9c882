#include "kvant/core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    ASSERT_EQ(pool.num_threads(), num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
      pool.parallel_for(num_tasks, [&](int64_t task, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, num_threads);
        runs[static_cast<size_t>(task)].fetch_add(1);
      });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, UsesAllWorkersAtTheSameTime) {
  ThreadPool pool(3);
  std::atomic<int> arrived{0};
  std::set<int> workers;
  std::vector<int> worker_of_task(3, -1);
  // Each task waits for the two others, so one worker alone would never end.
  pool.parallel_for(3, [&](int64_t task, int worker) {
    worker_of_task[static_cast<size_t>(task)] = worker;
    arrived.fetch_add(1);
    while (arrived.load() < 3) std::this_thread::yield();
  });
  workers.insert(worker_of_task.begin(), worker_of_task.end());
  EXPECT_EQ(workers, (std::set<int>{0, 1, 2}));
}

TEST(ThreadPool, HandsTasksOutInOrder) {
  ThreadPool pool(2);
  std::vector<int64_t> last_of_worker(2, -1);
  std::atomic<bool> in_order{true};
  pool.parallel_for(10'000, [&](int64_t task, int worker) {
    if (task <= last_of_worker[static_cast<size_t>(worker)]) in_order = false;
    last_of_worker[static_cast<size_t>(worker)] = task;
  });
  EXPECT_TRUE(in_order.load());
}

TEST(ThreadPool, MakesWritesOfAllTasksVisible) {
  ThreadPool pool(2);
  std::vector<int64_t> values(64, 0);
  for (int64_t round = 1; round <= 200; ++round) {
    pool.parallel_for(64, [&](int64_t task, int) { values[static_cast<size_t>(task)] += round; });
    if (round % 50 != 0) continue;
    for (const int64_t value : values) ASSERT_EQ(value, round * (round + 1) / 2);
  }
}

TEST(ThreadPool, PoolsOfSeveralSizesAlternate) {
  ThreadPool two(2);
  ThreadPool three(3);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 50; ++round) {
    for (ThreadPool* pool : {&two, &three}) pool->parallel_for(10, [&](int64_t task, int) { sum.fetch_add(task); });
  }
  EXPECT_EQ(sum.load(), 50 * 2 * 45);
}

TEST(ThreadPool, ScratchIsAlignedAndGrowsOnly) {
  ThreadPool pool(1);
  std::byte* small = pool.scratch(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % 64, 0u);
  std::fill(small, small + 100, std::byte{1});
  std::byte* large = pool.scratch(1 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % 64, 0u);
  std::fill(large, large + (1 << 20), std::byte{2});
  EXPECT_EQ(pool.scratch(100), large);
}

TEST(ThreadPool, TakesAllAvailableCoresByDefault) {
  EXPECT_GE(available_cores(), 1);
  EXPECT_EQ(ThreadPool(0).num_threads(), available_cores());
}

}  // namespace
}  // namespace kvant
