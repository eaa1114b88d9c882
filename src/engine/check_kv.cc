#include "engine/check_kv.h"

#include <vector>

#include <fmt/format.h>

#include "engine/cache/layer_groups.h"
#include "engine/cache/profile.h"
#include "kvant/attn/attention.h"
#include "kvant/attn/validate.h"

namespace kvant::engine {
namespace {

/// What the attention library says of one layer before weights are read.
Status check_layer(int32_t index, const ModelConfig& config, const attn::KvSpec& model_spec, int32_t page_size) {
  const LayerConfig& layer = config.layers[static_cast<size_t>(index)];
  const attn::KvSpec& spec = layer.kv_override ? *layer.kv_override : model_spec;
  attn::ModelAttentionConfig attention;
  attention.layer = index;
  attention.k_format = attn::to_string(spec.k_format);
  attention.v_format = attn::to_string(spec.v_format);
  attention.model_dtype = config.kv_dtype;
  attention.num_q_heads = layer.num_q_heads;
  attention.num_kv_heads = layer.num_kv_heads;
  attention.head_dim_k = layer.head_dim_k;
  attention.head_dim_v = layer.head_dim_v;
  attention.page_size = page_size;
  attention.window = layer.window;
  attention.soft_cap = layer.soft_cap;
  attention.edges = spec.edges;
  attention.conditioning = spec.conditioning;
  return attn::validate_model_attention(attention);
}

}  // namespace

Status check_kv_spec(const attn::KvSpec& resolved, const ModelConfig& config, const DeviceInfo& device,
                     const KvCheckOptions& options) {
  for (int32_t layer = 0; layer < config.num_layers(); ++layer)
    KVANT_RETURN_IF_ERROR(check_layer(layer, config, resolved, options.page_size));
  KVANT_ASSIGN_OR_RETURN(const std::vector<LayerGroup> groups,
                         make_layer_groups(config, resolved, options.page_size, device));
  const attn::AttnLimits limits{.max_requests = options.max_requests,
                                .max_tokens = options.max_batch_tokens,
                                .max_query_len = options.max_batch_tokens,
                                .max_pages_per_request = config.context_limit};
  for (const LayerGroup& group : groups) {
    if (!options.has_profile && spec_needs_profile(group.spec)) return missing_profile(group.spec);
    const auto bytes = attn::workspace_size(group.desc, limits, device, 1);
    if (!bytes && device.family != DeviceFamily::kCpu)
      return {bytes.error().code(), fmt::format("{}; or use --device cpu", bytes.error().message())};
    KVANT_RETURN_IF_ERROR(bytes);
  }
  return {};
}

}  // namespace kvant::engine
