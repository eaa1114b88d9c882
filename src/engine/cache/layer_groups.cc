#include "engine/cache/layer_groups.h"

#include <algorithm>

#include <fmt/format.h>

#include "kvant/attn/kernel_table.h"

namespace kvant::engine {
namespace {

/// Windows up to this size stay in e4m3 under an NVFP4 spec when other layers see everything: their cache is bounded,
/// and they would do most of the harm.
constexpr int32_t kSmallWindow = 1024;

attn::KvSpec small_window_spec(const attn::KvSpec& spec) {
  attn::KvSpec out = spec;
  out.text = {};
  out.k_format = out.v_format = attn::KvFormat::kE4m3;
  out.policy = attn::ScalePolicy::kAmax;
  out.conditioning = attn::KeyConditioning::kNone;
  out.edges = {.head = 16, .tail = 32};
  return out;
}

attn::KvSpec layer_spec(const LayerConfig& layer, const attn::KvSpec& spec, bool has_full_layers) {
  if (layer.kv_override) return *layer.kv_override;
  const bool is_default_nvfp4 =
      spec.k_format == attn::KvFormat::kNvfp4 && spec.v_format == attn::KvFormat::kNvfp4 && spec.edges.enabled();
  if (is_default_nvfp4 && has_full_layers && layer.window > 0 && layer.window <= kSmallWindow)
    return small_window_spec(spec);
  return spec;
}

}  // namespace

attn::KvLayout device_layout(attn::KvLayout layout, const DeviceInfo& device) {
  const bool on_cpu = device.family == DeviceFamily::kCpu;
  const bool has_nvfp4 = layout.k_format == attn::KvFormat::kNvfp4 || layout.v_format == attn::KvFormat::kNvfp4;
  // Tokens of a head side by side: on a GPU a tile of keys is one piece, not sixteen of 64 bytes; on a CPU a step's
  // scales are one vector load after another. Wider formats stream best there as they were written.
  if (!on_cpu || has_nvfp4) layout.order = attn::TokenHeadOrder::kHnd;
  if (!on_cpu && has_nvfp4) {
    layout.code_order = attn::own_code_order(device.family);
    layout.scale_order = attn::ScaleOrder::kLanes;
  }
  return layout;
}

Result<std::vector<LayerGroup>> make_layer_groups(const ModelConfig& config, const attn::KvSpec& spec,
                                                  int32_t page_size, const DeviceInfo& device) {
  const bool has_full_layers = std::any_of(config.layers.begin(), config.layers.end(),
                                           [](const LayerConfig& layer) { return layer.window == 0; });
  const DType activations = device.family == DeviceFamily::kCpu ? DType::kF32 : DType::kBf16;
  std::vector<LayerGroup> groups;
  for (int32_t index = 0; index < config.num_layers(); ++index) {
    const LayerConfig& layer = config.layers[static_cast<size_t>(index)];
    LayerGroup group{.spec = layer_spec(layer, spec, has_full_layers), .desc = {}, .layers = {}};
    if (group.spec.automatic) return failure(StatusCode::kInternal, "a cache needs a resolved --kv spec, not auto");
    group.desc = {.num_q_heads = layer.num_q_heads,
                  .layout = device_layout({.k_format = group.spec.k_format,
                                           .v_format = group.spec.v_format,
                                           .head_dim_k = layer.head_dim_k,
                                           .head_dim_v = layer.head_dim_v,
                                           .num_kv_heads = layer.num_kv_heads,
                                           .page_size = page_size},
                                          device),
                  .exact_pages = group.spec.edges.enabled(),
                  .conditioning = group.spec.conditioning,
                  .softmax_scale = layer.softmax_scale,
                  .soft_cap = layer.soft_cap,
                  .window = layer.window,
                  .sinks = layer.sinks,
                  .context_parallel = {},
                  .q_dtype = activations,
                  .out_dtype = activations};
    if (Status status = group.desc.layout.validate(); !status.ok())
      return failure(status.code(), fmt::format("layer {}: {}", index, status.message()));
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const LayerGroup& other) {
      return other.desc == group.desc && other.spec == group.spec;
    });
    if (same == groups.end()) {
      group.layers = {index};
      groups.push_back(std::move(group));
    } else {
      same->layers.push_back(index);
    }
  }
  return groups;
}

}  // namespace kvant::engine
