#include <string>
#include <utility>

#include <fmt/format.h>

#include "engine/models/gguf_config.h"
#include "engine/models/gguf_weights.h"
#include "engine/models/latent_attention.h"
#include "engine/models/layer_weights.h"
#include "engine/models/registry.h"
#include "engine/models/weight_views.h"

namespace kvant::engine {
namespace {

/// Rows of an embedding above this are a broken file.
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

LayerNames layer_names(int32_t layer, const Family& family) {
  const auto name = [&](std::string_view stem) { return fmt::format("blk.{}.{}", layer, stem); };
  return {.attention_norm = name("attn_norm"),
          .q = name("attn_q"),
          .k = name("attn_k"),
          .v = name("attn_v"),
          .output = name("attn_output"),
          .q_norm = name("attn_q_norm"),
          .k_norm = name("attn_k_norm"),
          .sinks = name("attn_sinks.weight"),
          .post_attention_norm = name("post_attention_norm"),
          .ffn_norm = name(family.gguf_ffn_norm),
          .post_ffn_norm = name("post_ffw_norm"),
          .gate = name("ffn_gate"),
          .up = name("ffn_up"),
          .down = name("ffn_down")};
}

class GgufStore final : public WeightStore {
 public:
  explicit GgufStore(const GgufWeights& weights) : weights_(weights) {}

  Result<WeightView> matrix(const std::string& name, int64_t rows, int64_t columns) const override {
    return weights_.matrix(name, rows, columns);
  }
  Result<WeightView> vector(const std::string& name, int64_t size) const override {
    return weights_.vector(name, size);
  }
  Result<WeightView> norm(const std::string& name, int64_t size) const override { return weights_.vector(name, size); }

  Status experts(int32_t index, const ModelConfig& config, LayerWeights& out) const override {
    const LayerConfig& layer = config.layers[static_cast<size_t>(index)];
    const int64_t count = layer.experts.count, hidden = config.hidden_size, size = layer.ffn_size;
    const auto name = [&](std::string_view stem) { return fmt::format("blk.{}.{}", index, stem); };
    KVANT_ASSIGN_OR_RETURN(out.router, weights_.matrix(name("ffn_gate_inp.weight"), count, hidden));
    KVANT_ASSIGN_OR_RETURN(out.gate, weights_.matrices(name("ffn_gate_exps.weight"), count, size, hidden));
    KVANT_ASSIGN_OR_RETURN(out.up, weights_.matrices(name("ffn_up_exps.weight"), count, size, hidden));
    KVANT_ASSIGN_OR_RETURN(out.down, weights_.matrices(name("ffn_down_exps.weight"), count, hidden, size));
    if (!layer.experts.biases) return {};
    const auto bias = [&](std::string_view stem, int64_t width) -> Result<WeightView> {
      KVANT_ASSIGN_OR_FAIL(WeightView rows, weights_.matrix(name(stem), count, width));
      return flattened(std::move(rows));
    };
    KVANT_ASSIGN_OR_RETURN(out.router_bias, weights_.vector(name("ffn_gate_inp.bias"), count));
    KVANT_ASSIGN_OR_RETURN(out.gate_bias, bias("ffn_gate_exps.bias", size));
    KVANT_ASSIGN_OR_RETURN(out.up_bias, bias("ffn_up_exps.bias", size));
    KVANT_ASSIGN_OR_RETURN(out.down_bias, bias("ffn_down_exps.bias", hidden));
    return {};
  }

 private:
  const GgufWeights& weights_;
};

/// Biases are where the file has them.
void find_biases(const GgufWeights& weights, const LayerNames& names, int32_t index, LayerConfig& layer) {
  layer.qkv_bias = weights.contains(names.q + ".bias");
  layer.output_bias = weights.contains(names.output + ".bias");
  layer.experts.biases = weights.contains(fmt::format("blk.{}.ffn_gate_inp.bias", index));
}

void bring_to_halves(const LayerConfig& layer, LayerWeights& weights) {
  // A layer without RoPE has its rows in the same order as the others: what it turns is none, what is stored is.
  const int32_t dim = layer.rope.dim > 0 ? layer.rope.dim : layer.head_dim_k;
  for (WeightView* view : {&weights.q, &weights.k})
    *view = halves_from_interleaved(std::move(*view), layer.head_dim_k, dim);
  for (WeightView* bias : {&weights.q_bias, &weights.k_bias})
    if (bias->present()) *bias = halves_from_interleaved_bias(std::move(*bias), layer.head_dim_k, dim);
}

Result<ModelSource> open_family(const GgufFile& file, const Family& family) {
  const GgufWeights weights(file);
  const GgufStore store(weights);
  ModelSource source;
  ModelConfig& config = source.config;
  KVANT_ASSIGN_OR_FAIL(config, read_gguf_config(file, weights, family));

  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[1] > kMaxVocabulary)
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: tensor 'token_embd.weight' with two dimensions is needed", file.name()));
  config.vocabulary_size = static_cast<int32_t>(embedding->shape[1]);
  KVANT_ASSIGN_OR_FAIL(source.embedding,
                       weights.matrix("token_embd.weight", config.vocabulary_size, config.hidden_size));
  KVANT_ASSIGN_OR_FAIL(source.final_norm, weights.vector("output_norm.weight", config.hidden_size));
  config.tied_head = !weights.contains("output.weight");
  source.head = source.embedding;
  if (!config.tied_head) {
    KVANT_ASSIGN_OR_FAIL(source.head, weights.matrix("output.weight", config.vocabulary_size, config.hidden_size));
  }
  for (int32_t index = 0; index < config.num_layers(); ++index) {
    LayerConfig& layer = config.layers[static_cast<size_t>(index)];
    const LayerNames names = layer_names(index, family);
    find_biases(weights, names, index, layer);
    KVANT_ASSIGN_OR_FAIL(LayerWeights layer_weights, read_layer_weights(index, config, names, store));
    if (family.interleaved_gguf_rows) bring_to_halves(layer, layer_weights);
    source.layers.push_back(std::move(layer_weights));
  }
  KVANT_FAIL_IF_ERROR(weights.check_all_used(family.name));
  const GgufTensor* query = file.find_tensor("blk.0.attn_q.weight");
  config.kv_dtype = query->type == GgufType::kF16 ? DType::kF16 : DType::kBf16;
  return source;
}

}  // namespace

Result<ModelSource> open_gguf_model(std::shared_ptr<const GgufFile> file) {
  KVANT_ASSIGN_OR_FAIL(const std::string name, file->get_string("general.architecture"));
  KVANT_FAIL_IF_ERROR(refuse_latent_attention(*file, name));
  const Family* family = find_gguf_family(name);
  if (family == nullptr)
    return failure(StatusCode::kUnsupported, fmt::format("{}: architecture '{}' is not supported; supported: {}",
                                                         file->name(), name, gguf_family_names()));
  KVANT_ASSIGN_OR_FAIL(ModelSource source, open_family(*file, *family));
  source.hash = hash_model(*file);
  source.owner = std::move(file);
  return source;
}

}  // namespace kvant::engine
