#include <charconv>
#include <cmath>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "engine/cache/profile.h"
#include "engine/loader/safetensors.h"

namespace kvant::engine {
namespace {

constexpr std::string_view kFormatName = "kvant-kv-profile-1";
constexpr int32_t kMaxLayers = 4096;

/// Suffixes of the scale tensors, indexed by KeyConditioning. `g_k` alone is the scale of fully conditioned keys.
constexpr std::string_view kKeyScaleNames[3] = {"g_k_none", "g_k_mean", "g_k"};

std::string tensor_name(int32_t layer, std::string_view what) { return fmt::format("layers.{}.{}", layer, what); }

Result<int32_t> read_count(const SafetensorsFile& file, std::string_view key, int32_t max) {
  KVANT_ASSIGN_OR_FAIL(const std::string text, file.get_metadata(key));
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > max) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: {} is not a number from 1 to {}; make the profile again with kvant calibrate",
                               file.name(), key, max));
  }
  return value;
}

class LayerReader {
 public:
  LayerReader(const SafetensorsFile& file, int32_t layer) : file_(file), layer_(layer) {}

  Result<LayerProfile> read() {
    const std::string first = tensor_name(layer_, "mu");
    const SafetensorsTensor* mu = file_.find_tensor(first);
    if (mu == nullptr || mu->shape.size() != 2)
      return failure(StatusCode::kDataLoss,
                     fmt::format("{}: tensor '{}' [kv_heads, head_dim] is missing", file_.name(), first));
    const int64_t channels[2] = {mu->shape[0], mu->shape[1]};
    const int64_t heads[1] = {mu->shape[0]};
    LayerProfile out;
    KVANT_ASSIGN_OR_FAIL(out.mu, values("mu", channels, false));
    KVANT_ASSIGN_OR_FAIL(out.z, values("z", channels, true));
    KVANT_ASSIGN_OR_FAIL(out.zi, values("zi", channels, true));
    for (size_t kind = 0; kind < std::size(kKeyScaleNames); ++kind) {
      KVANT_ASSIGN_OR_FAIL(out.g_k[kind], values(kKeyScaleNames[kind], heads, true));
    }
    KVANT_ASSIGN_OR_FAIL(out.g_v, values("g_v", heads, true));
    return out;
  }

 private:
  Result<std::vector<float>> values(std::string_view what, std::span<const int64_t> shape, bool positive) {
    const std::string name = tensor_name(layer_, what);
    KVANT_ASSIGN_OR_FAIL(std::vector<float> out, file_.get_f32(name, shape));
    for (const float value : out) {
      if (std::isfinite(value) && (!positive || value > 0)) continue;
      return failure(StatusCode::kDataLoss, fmt::format("{}: tensor '{}' holds {}; {} are needed", file_.name(), name,
                                                        value, positive ? "positive numbers" : "finite numbers"));
    }
    return out;
  }

  const SafetensorsFile& file_;
  int32_t layer_;
};

}  // namespace

Status save_profile(const KvProfile& profile, const std::filesystem::path& path) {
  SafetensorsWriter writer;
  writer.set_metadata("format", std::string(kFormatName));
  writer.set_metadata("id", profile.id);
  writer.set_metadata("model_hash", profile.model_hash);
  writer.set_metadata("tokens", std::to_string(profile.tokens));
  writer.set_metadata("context", std::to_string(profile.context));
  writer.set_metadata("layers", std::to_string(profile.layers.size()));
  for (int32_t i = 0; i < std::ssize(profile.layers); ++i) {
    const LayerProfile& layer = profile.layers[static_cast<size_t>(i)];
    const int64_t heads = std::ssize(layer.g_v);
    KVANT_CHECK(heads > 0);
    const std::vector<int64_t> channels = {heads, std::ssize(layer.mu) / heads};
    writer.add_f32(tensor_name(i, "mu"), channels, layer.mu);
    writer.add_f32(tensor_name(i, "z"), channels, layer.z);
    writer.add_f32(tensor_name(i, "zi"), channels, layer.zi);
    for (size_t kind = 0; kind < std::size(kKeyScaleNames); ++kind)
      writer.add_f32(tensor_name(i, kKeyScaleNames[kind]), {heads}, layer.g_k[kind]);
    writer.add_f32(tensor_name(i, "g_v"), {heads}, layer.g_v);
  }
  return writer.write(path);
}

Result<KvProfile> load_profile(const std::filesystem::path& path) {
  KVANT_ASSIGN_OR_FAIL(const SafetensorsFile file, SafetensorsFile::open(path));
  KVANT_ASSIGN_OR_FAIL(const std::string format, file.get_metadata("format"));
  if (format != kFormatName) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("{}: this is no KV profile that kvant reads: {} is needed", file.name(), kFormatName));
  }
  KvProfile profile;
  KVANT_ASSIGN_OR_FAIL(profile.id, file.get_metadata("id"));
  KVANT_ASSIGN_OR_FAIL(profile.model_hash, file.get_metadata("model_hash"));
  KVANT_ASSIGN_OR_FAIL(profile.tokens, read_count(file, "tokens", INT32_MAX));
  KVANT_ASSIGN_OR_FAIL(profile.context, read_count(file, "context", INT32_MAX));
  KVANT_ASSIGN_OR_FAIL(const int32_t num_layers, read_count(file, "layers", kMaxLayers));
  for (int32_t i = 0; i < num_layers; ++i) {
    KVANT_ASSIGN_OR_FAIL(LayerProfile layer, LayerReader(file, i).read());
    profile.layers.push_back(std::move(layer));
  }
  if (profile_id(profile) != profile.id) {
    return failure(
        StatusCode::kDataLoss,
        fmt::format("{}: the contents do not match the profile's id; make it again with kvant calibrate", file.name()));
  }
  return profile;
}

}  // namespace kvant::engine
