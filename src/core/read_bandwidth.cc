#include "core/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

#include <fmt/format.h>

namespace kvant {
namespace {

using Word = uint64_t;
// Two words, which every CPU adds at once; four sums keep as many additions in flight.
typedef Word Words __attribute__((vector_size(16), aligned(1)));

// One task is large enough to stream and small enough that threads finish together.
constexpr int64_t kTaskWords = (int64_t{1} << 20) / int64_t{sizeof(Word)};

}  // namespace

uint64_t sum_words(const void* data, int64_t bytes) {
  const auto* pairs = static_cast<const Words*>(data);
  Words a = {}, b = {}, c = {}, d = {};
  for (int64_t i = 0; i + 4 <= bytes / int64_t{sizeof(Words)}; i += 4) {
    a += pairs[i];
    b += pairs[i + 1];
    c += pairs[i + 2];
    d += pairs[i + 3];
  }
  const Words total = (a + b) + (c + d);
  return total[0] + total[1];
}

Result<ReadTest> ReadTest::create(ThreadPool& pool, int64_t bytes) {
  ReadTest test(pool);
  test.num_tasks_ = bytes / (kTaskWords * int64_t{sizeof(Word)});
  if (test.num_tasks_ < 1) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("read bandwidth over {} bytes; give at least 1 MiB", bytes));
  }
  try {
    test.words_.resize(static_cast<size_t>(test.num_tasks_ * kTaskWords));
  } catch (const std::bad_alloc&) {
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("no memory for a buffer of {} bytes; give a smaller size", bytes));
  }
  pool.parallel_for(test.num_tasks_, [&](int64_t task, int) {
    std::memset(test.words_.data() + task * kTaskWords, 1, kTaskWords * sizeof(Word));
  });
  gather_large_pages(test.words_.data(), test.words_.size() * sizeof(Word));
  return test;
}

Result<double> ReadTest::pass() {
  std::atomic<Word> checksum{0};
  const auto start = std::chrono::steady_clock::now();
  pool_->parallel_for(num_tasks_, [&](int64_t task, int) {
    checksum.fetch_add(sum_words(words_.data() + task * kTaskWords, kTaskWords * int64_t{sizeof(Word)}),
                       std::memory_order_relaxed);
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // Every word is 0x0101...: the sum proves that all bytes were read.
  if (checksum.load() != Word{0x0101010101010101u} * static_cast<Word>(words_.size()))
    return failure(StatusCode::kInternal, "the read bandwidth test misread its buffer");
  return static_cast<double>(words_.size()) * sizeof(Word) / seconds / 1e9;
}

Result<double> measure_read_bandwidth(ThreadPool& pool, const ReadBandwidthOptions& options) {
  if (options.passes < 1) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("read bandwidth in {} passes; give at least one", options.passes));
  }
  KVANT_ASSIGN_OR_FAIL(ReadTest test, ReadTest::create(pool, options.bytes));
  double best = 0.0;
  for (int32_t pass = 0; pass < options.passes; ++pass) {
    KVANT_ASSIGN_OR_FAIL(const double rate, test.pass());
    best = std::max(best, rate);
  }
  return best;
}

}  // namespace kvant
