#pragma once

#include "kvant/engine/model_config.h"
#include "ops/rope.h"

namespace kvant::engine {

/// A layer's RoPE as the operator takes it: every kind of scaling becomes frequency factors.
ops::RopeParams rope_params(const RopeConfig& rope);

}  // namespace kvant::engine
