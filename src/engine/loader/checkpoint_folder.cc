#include "engine/loader/checkpoint_folder.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "engine/hash.h"

namespace kvant::engine {

Result<CheckpointFolder> CheckpointFolder::open(const std::filesystem::path& path) {
  KVANT_ASSIGN_OR_FAIL(JsonObject config, JsonObject::read(path / "config.json"));
  KVANT_ASSIGN_OR_FAIL(SafetensorsFolder weights, SafetensorsFolder::open(path));
  return CheckpointFolder{.path = path, .config = std::move(config), .weights = std::move(weights)};
}

std::string CheckpointFolder::hash() const {
  Hasher hasher;
  hasher.add(config.json().dump());
  hasher.add(weights.hash());
  return hasher.hex();
}

}  // namespace kvant::engine
