#include "core/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <vector>

#include <fmt/format.h>

namespace kvant {
namespace {

using Word = uint64_t;
// Two words, which every CPU adds at once; four sums keep as many additions in flight.
typedef Word Words __attribute__((vector_size(16), aligned(8)));

Word sum_words(const Word* words, int64_t count) {
  const auto* pairs = reinterpret_cast<const Words*>(words);
  Words a = {}, b = {}, c = {}, d = {};
  for (int64_t i = 0; i + 4 <= count / 2; i += 4) {
    a += pairs[i];
    b += pairs[i + 1];
    c += pairs[i + 2];
    d += pairs[i + 3];
  }
  const Words total = (a + b) + (c + d);
  return total[0] + total[1];
}

}  // namespace

Result<double> measure_read_bandwidth(ThreadPool& pool, const ReadBandwidthOptions& options) {
  // One task is large enough to stream and small enough that threads finish together.
  constexpr int64_t kTaskWords = (int64_t{1} << 20) / int64_t{sizeof(Word)};
  const int64_t num_tasks = options.bytes / (kTaskWords * int64_t{sizeof(Word)});
  if (num_tasks < 1 || options.passes < 1) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("read bandwidth over {} bytes in {} passes; give at least 1 MiB and one pass",
                               options.bytes, options.passes));
  }
  std::vector<Word> buffer;
  try {
    buffer.resize(static_cast<size_t>(num_tasks * kTaskWords));
  } catch (const std::bad_alloc&) {
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("no memory for a buffer of {} bytes; give a smaller size", options.bytes));
  }
  pool.parallel_for(num_tasks, [&](int64_t task, int) {
    std::memset(buffer.data() + task * kTaskWords, 1, kTaskWords * sizeof(Word));
  });

  double best_seconds = 0.0;
  std::atomic<Word> checksum{0};
  for (int32_t pass = 0; pass < options.passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(num_tasks, [&](int64_t task, int) {
      checksum.fetch_add(sum_words(buffer.data() + task * kTaskWords, kTaskWords), std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best_seconds = pass == 0 ? seconds : std::min(best_seconds, seconds);
  }
  // Every word is 0x0101...: the sum proves that all bytes were read in every pass.
  const Word expected =
      Word{0x0101010101010101u} * static_cast<Word>(num_tasks * kTaskWords) * static_cast<Word>(options.passes);
  if (checksum.load() != expected) return failure(StatusCode::kInternal, "the read bandwidth test misread its buffer");
  return static_cast<double>(num_tasks * kTaskWords) * sizeof(Word) / best_seconds / 1e9;
}

}  // namespace kvant
