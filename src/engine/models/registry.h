#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// Which projections of attention have a bias.
enum class AttentionBias : uint8_t {
  kConfigured,  ///< All of them where config.json says `attention_bias`.
  kQkv,         ///< Queries, keys and values, always.
  kAll,         ///< All of them, always.
};

/// How a folder's files hold experts.
enum class ExpertFiles : uint8_t {
  kSeparate,  ///< mlp.experts.N.{gate,up,down}_proj
  kGptOss,    ///< One tensor of all experts, gate and up channels in turns; in MXFP4, or turned round in a float type.
};

/// One model family: what its checkpoints leave unsaid. The decoder never asks which family a model is of.
struct Family {
  std::string_view name;               ///< As GGUF files name it in general.architecture.
  std::string_view hf_class;           ///< As config.json names it in `architectures`.
  bool in_gguf = true;                 ///< False: its GGUF files go under another family's name.
  bool interleaved_gguf_rows = false;  ///< GGUF files hold q and k rows as RoPE pairs side by side.
  std::string_view gguf_ffn_norm = "ffn_norm";
  int32_t head_dim = 0;  ///< Where a folder's config.json does not say; 0 = hidden size over heads.
  bool qk_norm = false;
  bool post_norms = false;
  bool sinks = false;
  bool norms_minus_one = false;   ///< Folders hold the weights of norms minus 1.
  bool scaled_embedding = false;  ///< By the square root of the hidden size.
  AttentionBias bias = AttentionBias::kConfigured;
  Activation activation = Activation::kSilu;
  float theta = 10000.0f;        ///< Of RoPE where the checkpoint does not say.
  float window_theta = 0.0f;     ///< Of layers with a window, which have no RoPE scaling; 0 = as all others.
  bool whole_yarn_pairs = true;  ///< RopeScaling::whole_pairs where the checkpoint does not say.
  int32_t window_period = 0;     ///< Every so many layers the last one sees everything; 0 = all layers have the window.
  bool window_if_told = false;   ///< Folders mean their window only where `use_sliding_window` is true.
  int32_t rope_period = 0;       ///< Every so many layers the last one has no RoPE; 0 = all have it.
  int32_t wide_scale_layers = 0;  ///< GGUF files with so many layers scale scores by hidden size over heads.
  float score_cap = 0.0f;         ///< Soft caps where the checkpoint does not say.
  float final_cap = 0.0f;
  ExpertFiles expert_files = ExpertFiles::kSeparate;
};

/// Limit of Activation::kClampedSwish where the checkpoint does not say.
inline constexpr float kClampedSwishLimit = 7.0f;

/// Scale of queries and keys that YaRN applies unless the checkpoint gives one.
inline float yarn_attention_factor(float factor) { return factor > 1.0f ? 0.1f * std::log(factor) + 1.0f : 1.0f; }

std::span<const Family> families();

/// Null when there is none.
const Family* find_gguf_family(std::string_view architecture);
const Family* find_folder_family(std::string_view hf_class);
/// "llama, qwen2, ...": for refusals.
std::string gguf_family_names();
std::string folder_family_names();

/// Whether a layer has the model's window, or RoPE, by the family's own pattern.
inline bool has_window(const Family& family, int32_t layer) {
  return family.window_period == 0 || (layer + 1) % family.window_period != 0;
}
inline bool has_rope(const Family& family, int32_t layer) {
  return family.rope_period == 0 || (layer + 1) % family.rope_period != 0;
}

}  // namespace kvant::engine
