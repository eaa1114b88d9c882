#include "engine/models/layer_weights.h"

#include <utility>

namespace kvant::engine {
namespace {

Status read_attention(const LayerConfig& layer, int64_t hidden, const LayerNames& names, const WeightStore& store,
                      LayerWeights& out) {
  const int64_t q_rows = int64_t{layer.num_q_heads} * layer.head_dim_k;
  const int64_t k_rows = int64_t{layer.num_kv_heads} * layer.head_dim_k;
  const int64_t v_rows = int64_t{layer.num_kv_heads} * layer.head_dim_v;
  KVANT_ASSIGN_OR_RETURN(out.attention_norm, store.norm(names.attention_norm + ".weight", hidden));
  KVANT_ASSIGN_OR_RETURN(out.q, store.matrix(names.q + ".weight", q_rows, hidden));
  KVANT_ASSIGN_OR_RETURN(out.k, store.matrix(names.k + ".weight", k_rows, hidden));
  KVANT_ASSIGN_OR_RETURN(out.v, store.matrix(names.v + ".weight", v_rows, hidden));
  if (layer.qkv_bias) {
    KVANT_ASSIGN_OR_RETURN(out.q_bias, store.vector(names.q + ".bias", q_rows));
    KVANT_ASSIGN_OR_RETURN(out.k_bias, store.vector(names.k + ".bias", k_rows));
    KVANT_ASSIGN_OR_RETURN(out.v_bias, store.vector(names.v + ".bias", v_rows));
  }
  if (layer.qk_norm) {
    KVANT_ASSIGN_OR_RETURN(out.q_norm, store.norm(names.q_norm + ".weight", layer.head_dim_k));
    KVANT_ASSIGN_OR_RETURN(out.k_norm, store.norm(names.k_norm + ".weight", layer.head_dim_k));
  }
  if (layer.sinks) {
    KVANT_ASSIGN_OR_RETURN(out.sinks, store.vector(names.sinks, layer.num_q_heads));
  }
  KVANT_ASSIGN_OR_RETURN(out.output,
                         store.matrix(names.output + ".weight", hidden, int64_t{layer.num_q_heads} * layer.head_dim_v));
  if (layer.output_bias) {
    KVANT_ASSIGN_OR_RETURN(out.output_bias, store.vector(names.output + ".bias", hidden));
  }
  return {};
}

}  // namespace

Result<LayerWeights> read_layer_weights(int32_t index, const ModelConfig& config, const LayerNames& names,
                                        const WeightStore& store) {
  const LayerConfig& layer = config.layers[static_cast<size_t>(index)];
  const int64_t hidden = config.hidden_size;
  LayerWeights out;
  KVANT_FAIL_IF_ERROR(read_attention(layer, hidden, names, store, out));
  KVANT_ASSIGN_OR_FAIL(out.ffn_norm, store.norm(names.ffn_norm + ".weight", hidden));
  if (layer.post_norms) {
    KVANT_ASSIGN_OR_FAIL(out.post_attention_norm, store.norm(names.post_attention_norm + ".weight", hidden));
    KVANT_ASSIGN_OR_FAIL(out.post_ffn_norm, store.norm(names.post_ffn_norm + ".weight", hidden));
  }
  if (layer.experts.count > 0) {
    KVANT_FAIL_IF_ERROR(store.experts(index, config, out));
    return out;
  }
  KVANT_ASSIGN_OR_FAIL(out.gate, store.matrix(names.gate + ".weight", layer.ffn_size, hidden));
  KVANT_ASSIGN_OR_FAIL(out.up, store.matrix(names.up + ".weight", layer.ffn_size, hidden));
  KVANT_ASSIGN_OR_FAIL(out.down, store.matrix(names.down + ".weight", hidden, layer.ffn_size));
  return out;
}

}  // namespace kvant::engine
