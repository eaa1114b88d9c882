#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/loader/checkpoint_folder.h"
#include "engine/loader/gguf.h"
#include "engine/models/model_source.h"

namespace kvant::engine {

/// A checkpoint as users name it: a GGUF file, or a Hugging Face folder. One of the two pointers is set.
struct ModelFiles {
  std::string name;  ///< For errors.
  std::shared_ptr<const GgufFile> gguf;
  std::shared_ptr<const CheckpointFolder> folder;

  /// Reads headers and configuration, no weights.
  static Result<ModelFiles> open(const std::filesystem::path& path);
  Result<ModelSource> open_model() const;
};

}  // namespace kvant::engine
