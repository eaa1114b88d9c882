#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::cli {

struct SamplingOptions {
  engine::SamplingParams params;
  int32_t max_tokens = 256;
  std::vector<std::string> stop;
};

void add_sampling_options(CLI::App& app, SamplingOptions& options);

/// A request without prompt and callback.
Result<engine::GenerateRequest> make_request(const SamplingOptions& options);

}  // namespace kvant::cli
