#include "engine/models/checkpoint_kv.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/cache/kv_layers.h"
#include "engine/loader/printable.h"
#include "engine/loader/weight_rows.h"
#include "engine/models/layer_name.h"

namespace kvant::engine {
namespace {

constexpr float kSmallestScale = 0x1p-100f;
constexpr float kLargestScale = 0x1p100f;

enum class Role : uint8_t { kKey, kValue, kBoth, kQuery, kIgnored };

/// Names of scales after "layers.N.": the part before the last dot, and the last.
struct NameForm {
  std::string_view module;
  std::string_view leaf;
  Role role;
};

constexpr NameForm kForms[] = {
    // One per projection: ModelOpt.
    {"self_attn.k_proj", "k_scale", Role::kKey},
    {"self_attn.v_proj", "v_scale", Role::kValue},
    {"self_attn.q_proj", "q_scale", Role::kQuery},
    {"mixer.k_proj", "k_scale", Role::kKey},
    {"mixer.v_proj", "v_scale", Role::kValue},
    {"mixer.q_proj", "q_scale", Role::kQuery},
    // Fused projections.
    {"self_attn.qkv_proj", "k_scale", Role::kKey},
    {"self_attn.qkv_proj", "v_scale", Role::kValue},
    {"self_attn.qkv_proj", "q_scale", Role::kQuery},
    {"self_attn.qkv_proj", "kv_scale", Role::kBoth},
    {"self_attn.qkqkv_proj", "k_scale", Role::kKey},
    {"self_attn.qkqkv_proj", "v_scale", Role::kValue},
    // Of the attention as a whole: compressed-tensors, and engines' own files.
    {"self_attn", "k_scale", Role::kKey},
    {"self_attn", "v_scale", Role::kValue},
    {"self_attn", "q_scale", Role::kQuery},
    {"self_attn", "kv_scale", Role::kBoth},
    {"self_attn", "prob_scale", Role::kIgnored},
    {"self_attn.attn", "k_scale", Role::kKey},
    {"self_attn.attn", "v_scale", Role::kValue},
    {"self_attn.attn", "q_scale", Role::kQuery},
    {"self_attn.attn", "kv_scale", Role::kBoth},
    {"self_attn.attn", "prob_scale", Role::kIgnored},
    // Older names.
    {"self_attn.k_proj", "output_scale", Role::kKey},
    {"self_attn.v_proj", "output_scale", Role::kValue},
    {"self_attn.q_proj", "output_scale", Role::kQuery},
    {"self_attn.k_cache", "scale", Role::kKey},
    {"self_attn.v_cache", "scale", Role::kValue},
    {"self_attn.k", "scale", Role::kKey},
    {"self_attn.v", "scale", Role::kValue},
    {"self_attn.q", "scale", Role::kQuery},
};

struct ScaleName {
  int32_t layer = 0;
  std::string_view module;
  std::string_view leaf;
};

/// Layer, module and leaf of "model.layers.3.self_attn.k_proj.k_scale"; nothing for names without a layer.
std::optional<ScaleName> parse_name(std::string_view name) {
  const std::optional<LayerName> found = parse_layer_name(name);
  if (!found || !found->rest.starts_with('.')) return std::nullopt;
  const std::string_view rest = found->rest.substr(1);
  const size_t dot = rest.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return ScaleName{.layer = found->layer, .module = rest.substr(0, dot), .leaf = rest.substr(dot + 1)};
}

/// Whether a tensor can only be meant as a scale of the cache. Scales of weights and of their inputs are not.
bool is_cache_scale(const ScaleName& name) {
  constexpr std::string_view kOther[] = {"weight_scale",        "weight_scale_2", "weight_scale_inv",
                                         "weight_global_scale", "input_scale",    "input_global_scale"};
  if (std::find(std::begin(kOther), std::end(kOther), name.leaf) != std::end(kOther)) return false;
  const bool in_attention = name.module.starts_with("self_attn") || name.module.starts_with("mixer") ||
                            name.module.starts_with("attn") || name.module.starts_with("attention");
  return in_attention && (name.leaf == "scale" || name.leaf.ends_with("_scale") || name.leaf.ends_with("_zero_point"));
}

Status bad(const SafetensorsTensor& tensor, int32_t layer, std::string text) {
  return {StatusCode::kDataLoss, fmt::format("layer {}: KV scale '{}' {}", layer, printable(tensor.name), text)};
}

Result<std::vector<float>> read_values(const SafetensorsTensor& tensor, int32_t layer, int32_t num_kv_heads) {
  const int64_t count = tensor.num_elements();
  if (count != 1 && count != num_kv_heads) {
    return failure(bad(tensor, layer,
                       fmt::format("has shape [{}]; one number or one per KV head ({}) is needed",
                                   fmt::join(tensor.shape, ", "), num_kv_heads)));
  }
  auto values = float_values(tensor);
  if (!values) return failure(values.error().code(), fmt::format("layer {}: {}", layer, values.error().message()));
  for (const float value : *values) {
    if (!std::isfinite(value) || value < kSmallestScale || value > kLargestScale)
      return failure(bad(tensor, layer, fmt::format("is {}; a positive finite number is needed", value)));
  }
  return values;
}

Status check_zero_points(const SafetensorsTensor& tensor, int32_t layer) {
  const bool all_zero =
      std::all_of(tensor.data.begin(), tensor.data.end(), [](std::byte byte) { return byte == std::byte{0}; });
  return all_zero ? Status() : bad(tensor, layer, "is not 0, and caches with zero points are not supported");
}

/// Collects scales layer by layer.
class Collector {
 public:
  explicit Collector(const ModelConfig& config) : config_(config), layers_(config.layers.size()) {}

  Status add(const SafetensorsTensor& tensor, const ScaleName& name) {
    if (name.layer >= config_.num_layers())
      return {StatusCode::kDataLoss, fmt::format("KV scale '{}' is of layer {}; the model has {} layers",
                                                 printable(tensor.name), name.layer, config_.num_layers())};
    if (name.leaf.ends_with("_zero_point")) return check_zero_points(tensor, name.layer);
    const auto* form = std::find_if(std::begin(kForms), std::end(kForms), [&](const NameForm& row) {
      return row.module == name.module && row.leaf == name.leaf;
    });
    if (form == std::end(kForms)) {
      return {StatusCode::kUnsupported,
              fmt::format("tensor '{}' looks like a scale of the KV cache but is of no form that kvant knows; running "
                          "without it would be wrong",
                          printable(tensor.name))};
    }
    const LayerConfig& layer = config_.layers[static_cast<size_t>(name.layer)];
    Slot& slot = layers_[static_cast<size_t>(name.layer)];
    switch (form->role) {
      case Role::kIgnored: return {};
      case Role::kQuery: {
        KVANT_RETURN_IF_ERROR(read_values(tensor, name.layer, layer.num_q_heads));
        ++num_query_scales_;
        return {};
      }
      case Role::kKey:
      case Role::kValue:
      case Role::kBoth: break;
    }
    KVANT_ASSIGN_OR_RETURN(const std::vector<float> values, read_values(tensor, name.layer, layer.num_kv_heads));
    if (form->role != Role::kValue) {
      KVANT_RETURN_IF_ERROR(put(tensor, name.layer, values, "K", slot.k, slot.k_name));
      ++slot.k_tensors;
    }
    if (form->role != Role::kKey) {
      KVANT_RETURN_IF_ERROR(put(tensor, name.layer, values, "V", slot.v, slot.v_name));
      slot.v_tensors += form->role == Role::kValue ? 1 : 0;
    }
    ++num_scales_;
    return {};
  }

  int32_t num_query_scales() const { return num_query_scales_; }
  bool empty() const { return num_scales_ == 0; }

  /// What is missing becomes 1, and is said.
  CheckpointScales finish(attn::KvFormat format, std::vector<std::string>& notices) {
    CheckpointScales out{.format = format, .layers = {}};
    std::vector<int32_t> no_k, no_v;
    for (size_t i = 0; i < layers_.size(); ++i) {
      Slot& slot = layers_[i];
      if (slot.k.empty()) no_k.push_back(static_cast<int32_t>(i));
      if (slot.v.empty()) no_v.push_back(static_cast<int32_t>(i));
      out.layers.push_back({.k = slot.k.empty() ? std::vector<float>{1.0f} : std::move(slot.k),
                            .v = slot.v.empty() ? std::vector<float>{1.0f} : std::move(slot.v),
                            .k_tensors = slot.k_tensors,
                            .v_tensors = slot.v_tensors});
    }
    for (const auto& [which, missing] : {std::pair("K", &no_k), std::pair("V", &no_v)}) {
      if (missing->empty()) continue;
      notices.push_back(missing->size() == layers_.size()
                            ? fmt::format("the checkpoint has no {} scales; 1.0 is used for them", which)
                            : fmt::format("the checkpoint has no {} scale for layers {}; 1.0 is used for them", which,
                                          fmt::join(*missing, ", ")));
    }
    return out;
  }

 private:
  struct Slot {
    std::vector<float> k, v;
    std::string k_name, v_name;
    int32_t k_tensors = 0, v_tensors = 0;
  };

  static Status put(const SafetensorsTensor& tensor, int32_t layer, const std::vector<float>& values,
                    std::string_view which, std::vector<float>& place, std::string& place_name) {
    if (!place.empty() && place != values) {
      return {StatusCode::kDataLoss, fmt::format("layer {} has two {} scales that differ: '{}' and '{}'", layer, which,
                                                 printable(place_name), printable(tensor.name))};
    }
    place = values;
    place_name = tensor.name;
    return {};
  }

  const ModelConfig& config_;
  std::vector<Slot> layers_;
  int32_t num_scales_ = 0;
  int32_t num_query_scales_ = 0;
};

}  // namespace

Result<CheckpointKv> read_checkpoint_kv(const CheckpointFolder& folder, const FolderWeights& weights,
                                        const ModelConfig& config) {
  CheckpointKv out;
  KVANT_ASSIGN_OR_FAIL(out.quantisation, read_quantisation(folder, config.num_layers()));
  Collector collector(config);
  for (const auto& [name, tensor] : folder.weights.tensors()) {
    const std::optional<ScaleName> parsed = parse_name(name);
    if (!parsed || !is_cache_scale(*parsed) || weights.is_used(name)) continue;
    const Status status = collector.add(*tensor, *parsed);
    if (!status.ok()) return failure(status.code(), fmt::format("{}: {}", folder.weights.name(), status.message()));
    weights.use(name);
  }
  out.num_query_scales = collector.num_query_scales();
  const std::optional<attn::KvFormat> declared = out.quantisation.kv_format;
  if (!collector.empty()) {
    out.scales = std::make_shared<const CheckpointScales>(
        collector.finish(declared.value_or(attn::KvFormat::kE4m3), out.notices));
  }
  return out;
}

Result<attn::KvSpec> resolve_checkpoint_spec(const attn::KvSpec& spec, const ModelConfig& config,
                                             const CheckpointKv* kv, bool profile_asked) {
  attn::KvSpec resolved = attn::resolve_kv_spec(spec, config.kv_dtype);
  if (kv == nullptr) return resolved;
  if (spec.automatic && kv->quantisation.kv_format) {
    KVANT_ASSIGN_OR_FAIL(resolved, attn::parse_kv_spec(attn::to_string(*kv->quantisation.kv_format)));
    resolved.text = spec.text;
  } else if (spec.automatic && !kv->quantisation.unknown_kv.empty()) {
    return failure(StatusCode::kUnsupported,
                   fmt::format("{} declares a KV cache of {}, which kvant does not have; name another with --kv",
                               kv->quantisation.source, kv->quantisation.unknown_kv));
  }
  const bool names_conditioning = spec.text.find(":cond=") != std::string::npos;
  if (kv->scales != nullptr && resolved.quantised() && !profile_asked && !names_conditioning)
    resolved.conditioning = attn::KeyConditioning::kNone;
  return resolved;
}

Result<std::vector<std::optional<attn::KvSpec>>> layer_specs(std::string_view kv_layers, bool kv_is_auto,
                                                             const ModelConfig& config, const CheckpointKv* kv) {
  KVANT_ASSIGN_OR_FAIL(auto specs, parse_kv_layers(kv_layers, config.num_layers()));
  if (!kv_is_auto || kv == nullptr) return specs;
  const auto& declared = kv->quantisation.layer_kv_formats;
  for (size_t i = 0; i < declared.size(); ++i) {
    if (specs[i] || !declared[i]) continue;
    KVANT_ASSIGN_OR_FAIL(specs[i], attn::parse_kv_spec(attn::to_string(*declared[i])));
  }
  return specs;
}

Status check_checkpoint_spec(const attn::KvSpec& resolved, const CheckpointKv* kv) {
  const bool e5m2 = resolved.k_format == attn::KvFormat::kE5m2 || resolved.v_format == attn::KvFormat::kE5m2;
  if (kv == nullptr || !kv->quantisation.present() || !e5m2) return {};
  return {StatusCode::kUnsupported,
          fmt::format("an e5m2 cache does not go with a quantised checkpoint ({}); use e4m3, nvfp4 or a 16-bit cache",
                      kv->quantisation.source)};
}

}  // namespace kvant::engine
