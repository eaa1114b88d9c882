#include "engine/models/latent_attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "engine/loader/printable.h"

namespace kvant::engine {
namespace {

/// Their files may leave the rank to the library's default.
constexpr std::string_view kModelTypes[] = {"deepseek_v2", "deepseek_v3", "deepseek_v32"};
constexpr std::string_view kGgufArchitecture = "deepseek2";

/// `what`: the value that says so, "kv_lora_rank is 512".
Status refusal(std::string_view file, std::string_view what) {
  return {
      StatusCode::kUnsupported,
      fmt::format("{}: {}, which is multi-head latent attention (MLA); neither an nvfp4 or fp8 (e4m3, e5m2) cache "
                  "nor a 16-bit one holds its latent vectors; keys and values per head are needed: use a checkpoint "
                  "of another family",
                  file, what)};
}

}  // namespace

Status refuse_latent_attention(const JsonObject& config) {
  // Models of several modalities keep their text model's settings one level down.
  KVANT_ASSIGN_OR_RETURN(const auto nested, config.find_object("text_config"));
  for (const JsonObject* json : {&config, nested ? &*nested : nullptr}) {
    if (json == nullptr) continue;
    if (json->contains("kv_lora_rank")) {
      KVANT_ASSIGN_OR_RETURN(const int32_t rank, json->size("kv_lora_rank"));
      return refusal(json->name(), fmt::format("kv_lora_rank is {}", rank));
    }
    KVANT_ASSIGN_OR_RETURN(const std::string type, json->text_or("model_type", ""));
    if (std::find(std::begin(kModelTypes), std::end(kModelTypes), type) != std::end(kModelTypes))
      return refusal(json->name(), fmt::format("model_type is '{}'", type));
  }
  return {};
}

Status refuse_latent_attention(const GgufFile& file, std::string_view architecture) {
  const std::string key = fmt::format("{}.attention.kv_lora_rank", architecture);
  if (file.contains(key)) {
    KVANT_ASSIGN_OR_RETURN(const int64_t rank, file.get_int(key));
    return refusal(file.name(), fmt::format("{} is {}", printable(key), rank));
  }
  if (architecture == kGgufArchitecture)
    return refusal(file.name(), fmt::format("general.architecture is '{}'", architecture));
  return {};
}

}  // namespace kvant::engine
