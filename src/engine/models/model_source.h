#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvant/core/status.h"
#include "kvant/engine/model_config.h"
#include "ops/linear.h"

namespace kvant::engine {

class GgufFile;
struct CheckpointFolder;
struct CheckpointKv;

/// A weight that can be read but has not been: its shape has been checked, its bytes have not been touched.
struct WeightView {
  std::string name;
  int64_t rows = 0;     ///< Output features; 1 for a vector.
  int64_t columns = 0;  ///< Input features.
  ops::WeightRows read;
  /// The same as it is stored, where that is e4m3 with scales of 128 columns or more.
  ops::Fp8WeightRows read_fp8 = nullptr;

  bool present() const { return read != nullptr; }
};

struct LayerWeights {
  WeightView attention_norm;
  WeightView q, k, v, output;
  WeightView q_bias, k_bias, v_bias, output_bias;  ///< Present as LayerConfig says.
  WeightView q_norm, k_norm;
  WeightView sinks;
  WeightView post_attention_norm, post_ffn_norm;
  WeightView ffn_norm;
  /// Of all experts one after the other where the layer has experts: gate and up [count * ffn_size, hidden], down
  /// [count * hidden, ffn_size]; biases are [1, rows].
  WeightView gate, up, down;
  WeightView router, router_bias;
  WeightView gate_bias, up_bias, down_bias;
};

/// A checkpoint seen as a model: configuration and views of all its weights, in the decoder's channel order.
struct ModelSource {
  ModelConfig config;
  WeightView embedding;  ///< [vocabulary, hidden]
  WeightView final_norm;
  WeightView head;  ///< [vocabulary, hidden]; the embedding when tied.
  std::vector<LayerWeights> layers;
  std::string hash;                        ///< Of size, metadata and sampled weight bytes: names the model's profile.
  bool fp8_activations = false;            ///< e4m3 weights are meant to be multiplied with activations in e4m3.
  std::shared_ptr<const CheckpointKv> kv;  ///< Declared scheme and scales of the KV cache; null for GGUF files.
  std::shared_ptr<const void> owner;       ///< Keeps what the views read from alive.
};

/// Finds the architecture in the registry, reads its configuration and checks every tensor's presence and shape.
/// No weight is read. Unknown architectures, RoPE scalings and activations are refused by name.
Result<ModelSource> open_gguf_model(std::shared_ptr<const GgufFile> file);
/// The same of a Hugging Face folder.
Result<ModelSource> open_folder_model(std::shared_ptr<const CheckpointFolder> folder);

}  // namespace kvant::engine
