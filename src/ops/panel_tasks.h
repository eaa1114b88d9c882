#pragma once

#include <algorithm>
#include <cstdint>

#include "kvant/core/thread_pool.h"
#include "ops/divide_up.h"

namespace kvant::ops {

/// Outputs that a panel of packed weights holds: what a tile of the kernels computes at once. Any vector width divides
/// it.
inline constexpr int64_t kPanelOutputs = 16;

/// Cuts a product of `num_rows` rows and `num_panels` panels into tasks and runs
/// `body(row_begin, row_end, panel_begin, panel_end)` for each. `row_bytes` is the size of a row as the kernel reads
/// it.
template <class Body>
void for_panel_tasks(int64_t num_rows, int64_t row_bytes, int64_t num_panels, ThreadPool& pool, const Body& body) {
  // Rows of one task stay in the second-level cache while all panels of the task pass over them.
  constexpr int64_t kTaskRowBytes = 192 * 1024;
  constexpr int64_t kTasksPerThread = 8;
  // The tile heights of all instruction sets divide it.
  constexpr int64_t kTileMultiple = 12;
  const int64_t fitting_rows = std::max(kTileMultiple, kTaskRowBytes / row_bytes);
  const int64_t even_rows = divide_up(num_rows, divide_up(num_rows, fitting_rows));
  const int64_t task_rows = divide_up(even_rows, kTileMultiple) * kTileMultiple;
  const int64_t row_tasks = divide_up(num_rows, task_rows);
  const int64_t wanted_panel_tasks = divide_up(kTasksPerThread * pool.num_threads(), row_tasks);
  const int64_t task_panels = divide_up(num_panels, std::min(num_panels, wanted_panel_tasks));
  const int64_t panel_tasks = divide_up(num_panels, task_panels);
  pool.parallel_for(row_tasks * panel_tasks, [&](int64_t task, int) {
    const int64_t row = task / panel_tasks * task_rows;
    const int64_t panel = task % panel_tasks * task_panels;
    body(row, std::min(num_rows, row + task_rows), panel, std::min(num_panels, panel + task_panels));
  });
}

}  // namespace kvant::ops
