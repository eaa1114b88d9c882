#pragma once

#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja_ast.h"
#include "kvant/core/status.h"

namespace kvant::engine::jinja {

/// What a template sees and how much work it may do.
struct RenderInput {
  std::vector<std::pair<std::string, Value>> variables;
  std::tm now{};               ///< For strftime_now.
  int64_t max_steps = 0;       ///< Expressions, statements, list elements.
  int64_t max_text_bytes = 0;  ///< All text ever made, not just the output.
};

Result<Text> render(const Block& block, const RenderInput& input);

}  // namespace kvant::engine::jinja
