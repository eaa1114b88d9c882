#pragma once

#include <string>
#include <vector>

#include "kvant/core/status.h"
#include "kvant/engine/engine.h"
#include "progress_bar.h"

namespace kvant::cli {

/// Runs one request per prompt through the engine, as many at once as it takes, and prints the answers in order, each
/// when it and those before it are done; with `json` one object at the end. Progress goes to `bar`.
Status run_many(engine::Engine& engine, const engine::GenerateRequest& like,
                const std::vector<std::vector<int32_t>>& prompts, bool json, ProgressBar& bar);

/// The lines of a text that are not blank.
std::vector<std::string> prompt_lines(const std::string& text);

}  // namespace kvant::cli
