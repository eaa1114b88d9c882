#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/loader/checkpoint_folder.h"
#include "engine/loader/weight_rows.h"
#include "engine/models/checkpoint_kv.h"
#include "engine/models/folder_config.h"
#include "engine/models/folder_weights.h"
#include "engine/models/latent_attention.h"
#include "engine/models/layer_weights.h"
#include "engine/models/model_source.h"
#include "engine/models/weight_views.h"

namespace kvant::engine {
namespace {

LayerNames layer_names(int32_t layer, const Family& family) {
  const auto name = [&](std::string_view stem) { return fmt::format("model.layers.{}.{}", layer, stem); };
  return {.attention_norm = name("input_layernorm"),
          .q = name("self_attn.q_proj"),
          .k = name("self_attn.k_proj"),
          .v = name("self_attn.v_proj"),
          .output = name("self_attn.o_proj"),
          .q_norm = name("self_attn.q_norm"),
          .k_norm = name("self_attn.k_norm"),
          .sinks = name("self_attn.sinks"),
          .post_attention_norm = name("post_attention_layernorm"),
          .ffn_norm = name(family.post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm"),
          .post_ffn_norm = name("post_feedforward_layernorm"),
          .gate = name("mlp.gate_proj"),
          .up = name("mlp.up_proj"),
          .down = name("mlp.down_proj")};
}

/// Of a tensor [count, columns, width]: of every matrix its columns `first`, `first + step`, ... as rows. Elements of
/// neighbouring columns are read together, since reading a column alone would touch every line of memory.
WeightView turned(WeightView checked, ops::WeightRows elements, int64_t count, int64_t first, int64_t step) {
  const int64_t columns = checked.rows, width = checked.columns;
  checked.columns = columns;
  checked.rows = count * (width / step);
  checked.read = [=, elements = std::move(elements)](int64_t begin, int64_t end, float* out) {
    const int64_t rows = width / step;
    std::vector<float> piece(static_cast<size_t>(std::min(rows, end - begin) * step));
    while (begin < end) {
      const int64_t matrix = begin / rows, row = begin % rows;
      const int64_t num_rows = std::min(end - begin, rows - row);
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t at = (matrix * columns + column) * width + row * step;
        elements(at, at + num_rows * step, piece.data());
        for (int64_t i = 0; i < num_rows; ++i) out[i * columns + column] = piece[static_cast<size_t>(i * step + first)];
      }
      out += num_rows * columns;
      begin += num_rows;
    }
  };
  return checked;
}

class FolderStore final : public WeightStore {
 public:
  FolderStore(const FolderWeights& weights, const Family& family) : weights_(weights), family_(family) {}

  Result<WeightView> matrix(const std::string& name, int64_t rows, int64_t columns) const override {
    return weights_.matrix(name, rows, columns);
  }
  Result<WeightView> vector(const std::string& name, int64_t size) const override {
    return weights_.vector(name, size);
  }
  Result<WeightView> norm(const std::string& name, int64_t size) const override {
    KVANT_ASSIGN_OR_FAIL(WeightView weight, weights_.vector(name, size));
    return family_.norms_minus_one ? plus_one(std::move(weight)) : weight;
  }
  Status experts(int32_t index, const ModelConfig& config, LayerWeights& out) const override {
    const LayerConfig& layer = config.layers[static_cast<size_t>(index)];
    const std::string prefix = fmt::format("model.layers.{}.mlp.", index);
    switch (family_.expert_files) {
      case ExpertFiles::kSeparate: return separate_experts(prefix, layer, config.hidden_size, out);
      case ExpertFiles::kGptOss: return gpt_oss_experts(prefix, layer, config.hidden_size, out);
    }
    return {StatusCode::kInternal, "form of experts out of range"};
  }

 private:
  Status separate_experts(const std::string& prefix, const LayerConfig& layer, int64_t hidden,
                          LayerWeights& out) const {
    const auto all = [&](std::string_view stem, int64_t rows, int64_t columns) -> Result<WeightView> {
      std::vector<WeightView> parts;
      for (int32_t expert = 0; expert < layer.experts.count; ++expert) {
        KVANT_ASSIGN_OR_FAIL(
            WeightView part,
            weights_.matrix(fmt::format("{}experts.{}.{}.weight", prefix, expert, stem), rows, columns));
        parts.push_back(std::move(part));
      }
      return stacked(fmt::format("{}experts.{}", prefix, stem), std::move(parts));
    };
    KVANT_ASSIGN_OR_RETURN(out.router, weights_.matrix(prefix + "gate.weight", layer.experts.count, hidden));
    KVANT_ASSIGN_OR_RETURN(out.gate, all("gate_proj", layer.ffn_size, hidden));
    KVANT_ASSIGN_OR_RETURN(out.up, all("up_proj", layer.ffn_size, hidden));
    KVANT_ASSIGN_OR_RETURN(out.down, all("down_proj", hidden, layer.ffn_size));
    return {};
  }

  /// Rows of all experts: those of an expert are `rows` outputs, of which every `step`-th from `first` on is taken.
  Result<WeightView> joint_experts(const std::string& name, int64_t count, int64_t rows, int64_t columns, int64_t first,
                                   int64_t step) const {
    if (const SafetensorsTensor* plain = weights_.folder().find_tensor(name)) {
      KVANT_ASSIGN_OR_FAIL(WeightView checked, weights_.matrix_of(name, 0, count, columns, rows));
      KVANT_ASSIGN_OR_FAIL(auto elements, float_rows(*plain, 1));
      return turned(std::move(checked), std::move(elements), count, first, step);
    }
    std::vector<WeightView> parts;
    for (int64_t expert = 0; expert < count; ++expert) {
      KVANT_ASSIGN_OR_FAIL(WeightView part, weights_.mxfp4_matrix_of(name, expert, count, rows, columns));
      parts.push_back(std::move(part));
    }
    return every_row(stacked(name, std::move(parts)), first, step);
  }

  Status gpt_oss_experts(const std::string& prefix, const LayerConfig& layer, int64_t hidden, LayerWeights& out) const {
    const int64_t count = layer.experts.count, size = layer.ffn_size;
    const std::string gate_up = prefix + "experts.gate_up_proj", down = prefix + "experts.down_proj";
    KVANT_ASSIGN_OR_RETURN(out.router, weights_.matrix(prefix + "router.weight", count, hidden));
    KVANT_ASSIGN_OR_RETURN(out.router_bias, weights_.vector(prefix + "router.bias", count));
    KVANT_ASSIGN_OR_RETURN(out.gate, joint_experts(gate_up, count, 2 * size, hidden, 0, 2));
    KVANT_ASSIGN_OR_RETURN(out.up, joint_experts(gate_up, count, 2 * size, hidden, 1, 2));
    KVANT_ASSIGN_OR_RETURN(out.down, joint_experts(down, count, hidden, size, 0, 1));
    KVANT_ASSIGN_OR_RETURN(const WeightView gate_up_bias, weights_.matrix(gate_up + "_bias", count, 2 * size));
    KVANT_ASSIGN_OR_RETURN(const WeightView down_bias, weights_.matrix(down + "_bias", count, hidden));
    out.gate_bias = every_element(flattened(gate_up_bias), 0, 2);
    out.up_bias = every_element(flattened(gate_up_bias), 1, 2);
    out.down_bias = flattened(down_bias);
    return {};
  }

  const FolderWeights& weights_;
  const Family& family_;
};

/// A head that is declared tied is the embedding, whatever else the files hold.
Status read_head(const JsonObject& json, const FolderWeights& weights, ModelSource& source) {
  constexpr std::string_view kHead = "lm_head.weight";
  const bool has_head = weights.contains(kHead);
  ModelConfig& config = source.config;
  KVANT_ASSIGN_OR_RETURN(config.tied_head, json.boolean_or("tie_word_embeddings", !has_head));
  source.head = source.embedding;
  if (config.tied_head) {
    weights.use(kHead);
    return {};
  }
  if (!has_head)
    return {StatusCode::kDataLoss,
            fmt::format("{}: tie_word_embeddings is false but the weights hold no {}", json.name(), kHead)};
  KVANT_ASSIGN_OR_RETURN(source.head, weights.matrix(kHead, config.vocabulary_size, config.hidden_size));
  return {};
}

/// Tables that older checkpoints keep and that follow from config.json.
void use_derived_tensors(const FolderWeights& weights) {
  for (const auto& [name, tensor] : weights.folder().tensors())
    if (name.ends_with("rotary_emb.inv_freq")) weights.use(name);
}

}  // namespace

Result<ModelSource> open_folder_model(std::shared_ptr<const CheckpointFolder> folder) {
  const JsonObject& json = folder->config;
  KVANT_FAIL_IF_ERROR(refuse_latent_attention(json));
  KVANT_ASSIGN_OR_FAIL(const Family* family, read_folder_family(json));
  ModelSource source;
  ModelConfig& config = source.config;
  KVANT_ASSIGN_OR_FAIL(config, read_folder_config(json, *family));
  config.name = std::filesystem::weakly_canonical(folder->path).filename().string();
  const FolderWeights weights(folder->weights);
  KVANT_ASSIGN_OR_FAIL(CheckpointKv kv, read_checkpoint_kv(*folder, weights, config));
  source.fp8_activations = kv.quantisation.fp8_activations;
  source.kv = std::make_shared<const CheckpointKv>(std::move(kv));
  const FolderStore store(weights, *family);
  KVANT_ASSIGN_OR_FAIL(source.embedding,
                       weights.matrix("model.embed_tokens.weight", config.vocabulary_size, config.hidden_size));
  KVANT_ASSIGN_OR_FAIL(source.final_norm, store.norm("model.norm.weight", config.hidden_size));
  KVANT_FAIL_IF_ERROR(read_head(json, weights, source));
  for (int32_t index = 0; index < config.num_layers(); ++index) {
    KVANT_ASSIGN_OR_FAIL(LayerWeights layer, read_layer_weights(index, config, layer_names(index, *family), store));
    source.layers.push_back(std::move(layer));
  }
  use_derived_tensors(weights);
  KVANT_FAIL_IF_ERROR(weights.check_all_used());
  source.hash = folder->hash();
  source.owner = std::move(folder);
  return source;
}

}  // namespace kvant::engine
