#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/loader/printable.h"
#include "engine/models/checkpoint_kv.h"
#include "engine/models/layer_name.h"

namespace kvant::engine {
namespace {

using attn::KvFormat;

/// Of weights that kvant reads.
constexpr std::string_view kAlgorithms[] = {
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"};

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

/// A KV scheme as a name.
void read_kv_name(const std::string& name, std::optional<KvFormat>& format, std::string& unknown) {
  const std::string shown = upper(name);
  if (shown == "FP8" || shown == "FP8_E4M3" || shown == "NVFP4") {
    format = shown == "NVFP4" ? KvFormat::kNvfp4 : KvFormat::kE4m3;
  } else if (!shown.empty() && shown != "NONE" && shown != "AUTO") {
    unknown = fmt::format("'{}'", printable(name));
  }
}

/// A KV scheme as an object: {"num_bits": 8, "type": "float", "dynamic": false}.
Status read_kv_object(const JsonObject& json, std::optional<KvFormat>& format, std::string& unknown) {
  KVANT_ASSIGN_OR_RETURN(const bool dynamic, json.boolean_or("dynamic", false));
  KVANT_ASSIGN_OR_RETURN(const int64_t bits, json.integer("num_bits", 1, 64));
  KVANT_ASSIGN_OR_RETURN(const std::string type, json.text_or("type", "float"));
  if (!dynamic && type == "float" && (bits == 8 || bits == 4)) {
    format = bits == 8 ? KvFormat::kE4m3 : KvFormat::kNvfp4;
  } else {
    unknown = fmt::format("{}{} bits of type '{}'", dynamic ? "dynamic, " : "", bits, printable(type));
  }
  return {};
}

/// Where an object declares a scheme: kv_cache_scheme or kv_cache_quant_algo.
Status read_kv_scheme(const JsonObject& json, std::optional<KvFormat>& format, std::string& unknown) {
  for (const char* key : {"kv_cache_scheme", "kv_cache_quant_algo"}) {
    if (format || !unknown.empty() || !json.contains(key)) continue;
    if (json.json()[key].is_object()) {
      KVANT_ASSIGN_OR_RETURN(const JsonObject scheme, json.object(key));
      KVANT_RETURN_IF_ERROR(read_kv_object(scheme, format, unknown));
    } else {
      KVANT_ASSIGN_OR_RETURN(const std::string name, json.text(key));
      read_kv_name(name, format, unknown);
    }
  }
  return {};
}

/// Schemes of single layers in "quantized_layers" of mixed precision.
Status read_layer_schemes(const JsonObject& json, int32_t num_layers, QuantisationConfig& out) {
  KVANT_ASSIGN_OR_RETURN(const auto layers, json.find_object("quantized_layers"));
  if (!layers) return {};
  for (const std::string& module : layers->keys()) {
    if (!layers->json()[module].is_object()) continue;
    KVANT_ASSIGN_OR_RETURN(const JsonObject entry, layers->object(module));
    std::optional<KvFormat> format;
    std::string unknown;
    KVANT_RETURN_IF_ERROR(read_kv_scheme(entry, format, unknown));
    if (!unknown.empty()) out.unknown_kv = fmt::format("{} of '{}'", unknown, printable(module));
    if (!format) continue;
    const std::optional<LayerName> found = parse_layer_name(module);
    if (!found || found->layer >= num_layers)
      return {StatusCode::kDataLoss, fmt::format("{}: '{}' has a KV scheme but is none of the model's {} layers",
                                                 layers->name(), printable(module), num_layers)};
    out.layer_kv_formats.resize(static_cast<size_t>(num_layers));
    std::optional<KvFormat>& slot = out.layer_kv_formats[static_cast<size_t>(found->layer)];
    if (slot && *slot != *format)
      return {StatusCode::kDataLoss, fmt::format("{}: layer {} has the KV schemes {} and {}", layers->name(),
                                                 found->layer, attn::to_string(*slot), attn::to_string(*format))};
    slot = format;
  }
  return {};
}

Status read_algorithm(const JsonObject& json, QuantisationConfig& out) {
  KVANT_ASSIGN_OR_RETURN(const std::string algorithm, json.text_or("quant_algo", ""));
  out.algorithm = upper(algorithm);
  if (out.algorithm.empty() || out.algorithm == "NONE") return {};
  if (std::find(std::begin(kAlgorithms), std::end(kAlgorithms), out.algorithm) != std::end(kAlgorithms)) return {};
  return {StatusCode::kUnsupported, fmt::format("{}: quant_algo '{}' is not supported; supported are {}", json.name(),
                                                printable(algorithm), fmt::join(kAlgorithms, ", "))};
}

/// Whether compressed-tensors says of every group with 8-bit float weights that its activations are such too.
Result<bool> groups_have_fp8_activations(const JsonObject& json) {
  KVANT_ASSIGN_OR_FAIL(const auto groups, json.find_object("config_groups"));
  if (!groups) return false;
  const auto is_fp8 = [](const JsonObject& group, const char* key) -> Result<bool> {
    if (!group.contains(key) || !group.json()[key].is_object()) return false;
    KVANT_ASSIGN_OR_FAIL(const JsonObject args, group.object(key));
    if (!args.contains("num_bits")) return false;
    KVANT_ASSIGN_OR_FAIL(const int64_t bits, args.integer("num_bits", 1, 64));
    KVANT_ASSIGN_OR_FAIL(const std::string type, args.text_or("type", "int"));
    return bits == 8 && type == "float";
  };
  bool any = false;
  for (const std::string& name : groups->keys()) {
    if (!groups->json()[name].is_object()) continue;
    KVANT_ASSIGN_OR_FAIL(const JsonObject group, groups->object(name));
    KVANT_ASSIGN_OR_FAIL(const bool weights, is_fp8(group, "weights"));
    if (!weights) continue;
    KVANT_ASSIGN_OR_FAIL(const bool activations, is_fp8(group, "input_activations"));
    if (!activations) return false;
    any = true;
  }
  return any;
}

/// Weights of 8-bit floats that ModelOpt calls so are meant for 16-bit activations.
constexpr std::string_view kWeightOnlyFp8 = "FP8_PB_WO";

/// Whether ModelOpt's algorithms multiply e4m3 with e4m3.
Result<bool> algorithms_have_fp8_activations(const JsonObject& json, const std::string& algorithm) {
  if (algorithm == "FP8" || algorithm == "FP8_PER_CHANNEL_PER_TOKEN") return true;
  if (algorithm != "MIXED_PRECISION") return false;
  KVANT_ASSIGN_OR_FAIL(const auto layers, json.find_object("quantized_layers"));
  bool any = false;
  for (const std::string& module : layers ? layers->keys() : std::vector<std::string>{}) {
    if (!layers->json()[module].is_object()) continue;
    KVANT_ASSIGN_OR_FAIL(const JsonObject entry, layers->object(module));
    KVANT_ASSIGN_OR_FAIL(const std::string of_layer, entry.text_or("quant_algo", ""));
    if (upper(of_layer) == kWeightOnlyFp8) return false;
    any = any || upper(of_layer).starts_with("FP8");
  }
  return any;
}

Result<bool> has_fp8_activations(const JsonObject& json, const std::string& method, const std::string& algorithm) {
  if (method == "fp8") return true;  // A scheme of activations is static or dynamic.
  if (method == "compressed-tensors") return groups_have_fp8_activations(json);
  return algorithms_have_fp8_activations(json, algorithm);
}

/// One of the two places, in the nested form {"quantization": {...}} or flat.
Status read_place(const JsonObject& outer, int32_t num_layers, QuantisationConfig& out) {
  out.source = outer.name();
  KVANT_ASSIGN_OR_RETURN(const std::string method, outer.text_or("quant_method", ""));
  constexpr std::string_view kMethods[] = {"compressed-tensors", "fp8", "mxfp4"};
  const bool known = method.empty() || method.starts_with("modelopt") ||
                     std::find(std::begin(kMethods), std::end(kMethods), method) != std::end(kMethods);
  if (!known) {
    return {StatusCode::kUnsupported, fmt::format("{}: quant_method '{}' is not supported; supported are modelopt, {}",
                                                  outer.name(), printable(method), fmt::join(kMethods, ", "))};
  }
  KVANT_ASSIGN_OR_RETURN(const auto nested, outer.find_object("quantization"));
  const JsonObject& inner = nested ? *nested : outer;
  KVANT_RETURN_IF_ERROR(read_algorithm(inner, out));
  KVANT_ASSIGN_OR_RETURN(out.fp8_activations, has_fp8_activations(inner, method, out.algorithm));
  KVANT_RETURN_IF_ERROR(read_kv_scheme(inner, out.kv_format, out.unknown_kv));
  if (nested) KVANT_RETURN_IF_ERROR(read_kv_scheme(outer, out.kv_format, out.unknown_kv));
  return read_layer_schemes(inner, num_layers, out);
}

}  // namespace

Result<QuantisationConfig> read_quantisation(const CheckpointFolder& folder, int32_t num_layers) {
  QuantisationConfig in_config, beside;
  KVANT_ASSIGN_OR_FAIL(const auto place, folder.config.find_object("quantization_config"));
  if (place) KVANT_FAIL_IF_ERROR(read_place(*place, num_layers, in_config));
  const std::filesystem::path path = folder.path / "hf_quant_config.json";
  if (std::error_code ignored; std::filesystem::exists(path, ignored)) {
    KVANT_ASSIGN_OR_FAIL(const JsonObject json, JsonObject::read(path));
    KVANT_FAIL_IF_ERROR(read_place(json, num_layers, beside));
  }
  if (in_config.kv_format && beside.kv_format && *in_config.kv_format != *beside.kv_format) {
    return failure(StatusCode::kDataLoss, fmt::format("{} declares a KV cache of {}, {} one of {}", in_config.source,
                                                      attn::to_string(*in_config.kv_format), beside.source,
                                                      attn::to_string(*beside.kv_format)));
  }
  const auto says_kv = [](const QuantisationConfig& config) {
    return config.kv_format || !config.unknown_kv.empty() || !config.layer_kv_formats.empty();
  };
  if (!in_config.present() || (says_kv(beside) && !says_kv(in_config))) return beside;
  return in_config;
}

}  // namespace kvant::engine
