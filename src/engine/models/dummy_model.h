#pragma once

#include <filesystem>

#include "engine/models/model_source.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// A model of the shape that a JSON file describes (bench/shapes), with reproducible random weights: for measuring
/// speed, never text. Unknown keys, missing ones and values out of range are refused by name.
Result<ModelSource> open_dummy_model(const std::filesystem::path& file);

}  // namespace kvant::engine
