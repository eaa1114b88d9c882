#pragma once

#include "engine/loader/gguf.h"
#include "engine/models/gguf_weights.h"
#include "engine/models/registry.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// A model's configuration from its metadata. RoPE factors are tensors, which is what `weights` is for.
Result<ModelConfig> read_gguf_config(const GgufFile& file, const GgufWeights& weights, const Family& family);

}  // namespace kvant::engine
