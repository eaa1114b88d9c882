#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::cli {

/// How many requests are served at once, and with what means.
struct ServingOptions {
  int32_t parallel = 0;  ///< 0 = not given.
  std::string kv_memory = "auto";
  std::string speculate = "none";
  bool no_prefix_cache = false;
  bool batch_invariant = false;
};

void add_serving_options(CLI::App& app, ServingOptions& options);

/// Fills the fields of `out` that these options are about.
Status apply_serving_options(const ServingOptions& options, engine::EngineOptions& out);

}  // namespace kvant::cli
