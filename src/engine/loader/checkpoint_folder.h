#pragma once

#include <filesystem>

#include "engine/loader/json_object.h"
#include "engine/loader/safetensors_folder.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// A Hugging Face folder: config.json and the weights. Its other files are read by those who need them.
struct CheckpointFolder {
  std::filesystem::path path;
  JsonObject config;
  SafetensorsFolder weights;

  static Result<CheckpointFolder> open(const std::filesystem::path& path);
  /// Hash of config.json and samples of the weights: names the model's profile.
  std::string hash() const;
};

}  // namespace kvant::engine
