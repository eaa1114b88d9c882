#pragma once

#include <string>

#include "server/engine_host.h"
#include "server/json.h"

namespace kvant::server {

/// What is in effect: model, KV cache, kernels, device, limits.
Json props_json(const engine::EngineFacts& facts, const EngineHost& host, const std::string& model_name);

}  // namespace kvant::server
