#pragma once

#include <functional>
#include <string>

#include "kvant/core/status.h"

namespace kvant::bench {

struct AttentionSuiteOptions {
  std::string suite = "decode";  ///< See shapes_of.
  std::string shapes;            ///< Keeps the shapes whose names hold one of these comma-separated texts; empty: all.
  std::string commit = "unknown", date = "unknown";  ///< Written down with the results.
};

/// Attention on the first CUDA device against a plain read of the same bytes; `write` gets one JSON object in pieces, a
/// row as soon as it is measured. Each time is the median of graph replays over disjoint sets of pages that together
/// exceed the L2 cache; a set's pages are shuffled by the one page table of all sets.
Status run_attention_suite(const AttentionSuiteOptions& options, const std::function<void(const std::string&)>& write);

}  // namespace kvant::bench
