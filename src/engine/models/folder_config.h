#pragma once

#include "engine/loader/json_object.h"
#include "engine/models/registry.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// The family that config.json names in `architectures`; kUnsupported with the name and the list of known ones.
Result<const Family*> read_folder_family(const JsonObject& config);

/// A model's configuration from config.json. Whether the head is tied is not in it: that depends on the tensors too.
Result<ModelConfig> read_folder_config(const JsonObject& config, const Family& family);

}  // namespace kvant::engine
