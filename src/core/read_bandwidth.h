#pragma once

#include <cstdint>

#include "core/large_pages.h"
#include "kvant/core/status.h"
#include "kvant/core/thread_pool.h"

namespace kvant {

struct ReadBandwidthOptions {
  int64_t bytes = int64_t{1} << 29;  ///< Size of the buffer; several times the last-level cache.
  int32_t passes = 5;                ///< Timed passes; the fastest counts.
};

/// Reads whole pieces of 64 bytes from any address; returns the sum of their 64-bit words, so that the reads are
/// needed.
uint64_t sum_words(const void* data, int64_t bytes);

/// A buffer that is in no cache and is read again and again.
class ReadTest {
 public:
  /// The pool must outlive the test.
  static Result<ReadTest> create(ThreadPool& pool, int64_t bytes = ReadBandwidthOptions().bytes);

  /// Reads everything once with all threads; GB/s (1e9).
  Result<double> pass();

 private:
  explicit ReadTest(ThreadPool& pool) : pool_(&pool) {}

  ThreadPool* pool_;
  LargePageVector<uint64_t> words_;
  int64_t num_tasks_ = 0;
};

/// Bytes per second at which all threads of the pool together read memory that is in no cache, in GB/s (1e9). It is the
/// ceiling that decode attention and single-row products are measured against.
Result<double> measure_read_bandwidth(ThreadPool& pool, const ReadBandwidthOptions& options = {});

}  // namespace kvant
