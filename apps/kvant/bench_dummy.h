#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bar_chart.h"
#include "json_output.h"
#include "kvant/core/status.h"
#include "progress_bar.h"

namespace kvant::cli {

/// Options of `bench model --dummy`.
struct DummyBenchOptions {
  std::string shape;
  std::vector<int32_t> batches = {1, 64, 256};
  std::vector<int32_t> contexts = {1024, 2048, 4096};
  int32_t query_len = 1;
  int32_t steps = 32;
  bool cpu = false;
};

void add_dummy_options(CLI::App& app, DummyBenchOptions& options);

/// Times of decode steps of a model with random weights, one row per KV cache, batch and context; cells that do not fit
/// say so. Caches hold noise, never results.
Result<Json> bench_dummy(const DummyBenchOptions& options, const std::vector<std::string>& kv, int32_t threads,
                         ProgressBar& bar);
void print_dummy_table(const Json& json);
/// A step's parts, a group of bars for each batch and context.
BarChart dummy_chart(const Json& json);

}  // namespace kvant::cli
