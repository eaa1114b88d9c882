#include "engine/models/registry.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "engine/models/gguf_weights.h"

namespace kvant::engine {
namespace {

constexpr Architecture kArchitectures[] = {
    {"llama", open_llama},
};

std::string known_architectures() {
  std::string names;
  for (const Architecture& row : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

}  // namespace

std::string_view to_string(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::kNone: return "none";
    case RopeScalingKind::kLinear: return "linear";
    case RopeScalingKind::kLlama3: return "llama3";
  }
  return "?";
}

std::span<const Architecture> architectures() { return kArchitectures; }

Result<ModelSource> open_gguf_model(std::shared_ptr<const GgufFile> file) {
  KVANT_ASSIGN_OR_FAIL(const std::string name, file->get_string("general.architecture"));
  for (const Architecture& row : kArchitectures) {
    if (row.name != name) continue;
    KVANT_ASSIGN_OR_FAIL(ModelSource source, row.open(*file));
    source.hash = hash_model(*file);
    source.owner = std::move(file);
    return source;
  }
  return failure(StatusCode::kUnsupported, fmt::format("{}: architecture '{}' is not supported; supported: {}",
                                                       file->name(), name, known_architectures()));
}

}  // namespace kvant::engine
