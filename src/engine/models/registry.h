#pragma once

#include <span>
#include <string_view>

#include "engine/loader/gguf.h"
#include "engine/models/model_source.h"

namespace kvant::engine {

/// One model family: how its checkpoints describe themselves.
struct Architecture {
  std::string_view name;  ///< general.architecture
  Result<ModelSource> (*open)(const GgufFile& file);
};

std::span<const Architecture> architectures();

// One per file of this folder.
Result<ModelSource> open_llama(const GgufFile& file);

}  // namespace kvant::engine
