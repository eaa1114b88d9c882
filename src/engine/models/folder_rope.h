#pragma once

#include "engine/loader/json_object.h"
#include "engine/models/registry.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// RoPE of layers that see everything, and of layers with a window.
struct FolderRopes {
  RopeConfig full;
  RopeConfig window;
};

/// Both spellings are read: `rope_theta` with `rope_scaling`, and `rope_parameters`, of the model or of each kind of
/// layer. Unknown types are refused by name.
Result<FolderRopes> read_folder_ropes(const JsonObject& config, const Family& family, int32_t head_dim);

}  // namespace kvant::engine
