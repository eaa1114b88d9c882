#pragma once

#include <algorithm>
#include <cstdint>

#include "kvant/core/stream.h"
#include "kvant/core/thread_pool.h"

namespace kvant::ops {

/// Cost of one exp, in the cheap element operations that `for_row_blocks` counts.
inline constexpr int64_t kCostOfExp = 8;

/// Runs `body(row_begin, row_end)` over all rows, on the pool when the work is worth waking it.
template <class Body>
void for_row_blocks(int64_t rows, int64_t row_cost, Stream stream, const Body& body) {
  // Element operations that take about as long as handing out one task.
  constexpr int64_t kMinBlockCost = 32 * 1024;
  if (rows <= 0) return;
  const int64_t block = std::max<int64_t>(1, kMinBlockCost / std::max<int64_t>(1, row_cost));
  const int64_t num_blocks = (rows + block - 1) / block;
  if (num_blocks == 1) return body(int64_t{0}, rows);
  stream.pool->parallel_for(num_blocks,
                            [&](int64_t task, int) { body(task * block, std::min(rows, (task + 1) * block)); });
}

}  // namespace kvant::ops
