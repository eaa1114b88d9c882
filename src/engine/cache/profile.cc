#include "engine/cache/profile.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "engine/hash.h"

namespace kvant::engine {
namespace {

constexpr float kNvfp4Range = 448.0f * 6.0f;
constexpr float kHeadroom = 2.0f;
constexpr float kMinScale = 0x1p-14f;

void add(Hasher& hasher, const std::vector<float>& values) {
  hasher.add_value(values.size());
  hasher.add(std::as_bytes(std::span(values)));
}

}  // namespace

Status KvProfile::check_shapes(const ModelConfig& config) const {
  const auto mismatch = [](std::string what) -> Status {
    return {StatusCode::kInvalidArgument,
            fmt::format("the KV profile is not of this model: {}; make one with kvant calibrate", what)};
  };
  if (layers.size() != config.layers.size())
    return mismatch(fmt::format("it has {} layers, the model has {}", layers.size(), config.layers.size()));
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto heads = static_cast<size_t>(config.layers[i].num_kv_heads);
    const size_t channels = heads * static_cast<size_t>(config.layers[i].head_dim_k);
    const LayerProfile& layer = layers[i];
    const bool channels_fit = layer.mu.size() == channels && layer.z.size() == channels && layer.zi.size() == channels;
    const bool heads_fit = layer.g_v.size() == heads &&
                           std::all_of(std::begin(layer.g_k), std::end(layer.g_k),
                                       [&](const std::vector<float>& scales) { return scales.size() == heads; });
    if (!channels_fit || !heads_fit)
      return mismatch(fmt::format("layer {} has {} channels in {} KV heads, the model has {} in {}", i, layer.mu.size(),
                                  layer.g_v.size(), channels, heads));
  }
  return {};
}

bool spec_is_plain(const attn::KvSpec& spec) {
  return spec.conditioning == attn::KeyConditioning::kNone && !spec.edges.enabled() &&
         spec.policy == attn::ScalePolicy::kAmax;
}

bool spec_needs_profile(const attn::KvSpec& spec) { return spec.conditioning != attn::KeyConditioning::kNone; }

Status missing_profile(const attn::KvSpec& spec) {
  return {
      StatusCode::kInvalidArgument,
      fmt::format("--kv {} conditions keys (cond={}) and needs a profile, but there is none; use --kv-profile auto or "
                  "a profile file, or add :cond=none",
                  spec.to_string(), attn::to_string(spec.conditioning))};
}

bool spec_wants_profile(const attn::KvSpec& spec) {
  const bool has_nvfp4 = spec.k_format == attn::KvFormat::kNvfp4 || spec.v_format == attn::KvFormat::kNvfp4;
  return spec_needs_profile(spec) || (has_nvfp4 && !spec_is_plain(spec));
}

float nvfp4_scale(float amax) { return std::max(kMinScale, kHeadroom * amax / kNvfp4Range); }

float scale_for_format(attn::KvFormat format, float nvfp4_scale) {
  switch (format) {
    case attn::KvFormat::kF32:
    case attn::KvFormat::kF16:
    case attn::KvFormat::kBf16: return 1.0f;
    case attn::KvFormat::kE4m3: return nvfp4_scale * (kNvfp4Range / 448.0f);
    case attn::KvFormat::kE5m2: return nvfp4_scale * (kNvfp4Range / 57344.0f);
    case attn::KvFormat::kNvfp4: return nvfp4_scale;
  }
  return 1.0f;
}

std::string profile_id(const KvProfile& profile) {
  Hasher hasher;
  hasher.add(profile.model_hash);
  hasher.add_value(profile.tokens);
  hasher.add_value(profile.context);
  for (const LayerProfile& layer : profile.layers) {
    for (const std::vector<float>* values : {&layer.mu, &layer.z, &layer.zi, &layer.g_v}) add(hasher, *values);
    for (const std::vector<float>& values : layer.g_k) add(hasher, values);
  }
  return hasher.hex();
}

}  // namespace kvant::engine
