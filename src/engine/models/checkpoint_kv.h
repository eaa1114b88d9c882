#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/checkpoint_scales.h"
#include "engine/loader/checkpoint_folder.h"
#include "engine/models/folder_weights.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/core/status.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// What a checkpoint says about its quantisation: config.json's quantization_config or hf_quant_config.json beside it.
struct QuantisationConfig {
  std::string source;                       ///< File and key, for people; empty when there is none.
  std::string algorithm;                    ///< Of the weights: "FP8", "NVFP4", ...; empty when not said.
  bool fp8_activations = false;             ///< As ModelSource::fp8_activations.
  std::optional<attn::KvFormat> kv_format;  ///< Declared for the cache of all layers.
  std::string unknown_kv;                   ///< A declared scheme that kvant does not have; why, in words.
  std::vector<std::optional<attn::KvFormat>> layer_kv_formats;  ///< Of layers that differ; empty when none does.

  bool present() const { return !source.empty(); }
};
/// Unknown methods and algorithms are refused by name; an unknown KV scheme is only noted.
Result<QuantisationConfig> read_quantisation(const CheckpointFolder& folder, int32_t num_layers);

/// The KV cache as a checkpoint has it.
struct CheckpointKv {
  QuantisationConfig quantisation;
  std::shared_ptr<const CheckpointScales> scales;  ///< Null when the checkpoint holds none.
  int32_t num_query_scales = 0;                    ///< Of no use: queries stay in 16 bit or more.
  std::vector<std::string> notices;                ///< What a user should know of them, a line each.
};

/// Finds every scale of keys, values and queries under whatever name, checks shape and value, and counts it as used. A
/// scale tensor that belongs to nothing is refused by name.
Result<CheckpointKv> read_checkpoint_kv(const CheckpointFolder& folder, const FolderWeights& weights,
                                        const ModelConfig& config);

/// `--kv` over a checkpoint: `auto` becomes the declared scheme or else the 16-bit dtype. Scales of raw keys turn
/// conditioning off, unless the spec names it or a profile is asked for. `kv` may be null.
Result<attn::KvSpec> resolve_checkpoint_spec(const attn::KvSpec& spec, const ModelConfig& config,
                                             const CheckpointKv* kv, bool profile_asked);

/// Encodings of single layers, unresolved: what --kv-layers says, else what the checkpoint declares where --kv is auto.
Result<std::vector<std::optional<attn::KvSpec>>> layer_specs(std::string_view kv_layers, bool kv_is_auto,
                                                             const ModelConfig& config, const CheckpointKv* kv);

/// e5m2 has no place in a checkpoint that was quantised in e4m3 or NVFP4.
Status check_checkpoint_spec(const attn::KvSpec& resolved, const CheckpointKv* kv);

}  // namespace kvant::engine
