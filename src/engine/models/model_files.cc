#include "engine/models/model_files.h"

#include <system_error>
#include <utility>

namespace kvant::engine {

Result<ModelFiles> ModelFiles::open(const std::filesystem::path& path) {
  ModelFiles out;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    KVANT_ASSIGN_OR_FAIL(CheckpointFolder folder, CheckpointFolder::open(path));
    out.name = path.string();
    out.folder = std::make_shared<const CheckpointFolder>(std::move(folder));
    return out;
  }
  KVANT_ASSIGN_OR_FAIL(GgufFile file, GgufFile::open(path));
  out.name = file.name();
  out.gguf = std::make_shared<const GgufFile>(std::move(file));
  return out;
}

Result<ModelSource> ModelFiles::open_model() const {
  return gguf != nullptr ? open_gguf_model(gguf) : open_folder_model(folder);
}

}  // namespace kvant::engine
