#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/attn/kv_spec.h"
#include "kvant/core/dtype.h"

namespace kvant::engine {

/// Which channels of a head RoPE turns together. Checkpoints that store pairs interleaved are brought to kHalves when
/// their weights are read, so that the decoder, profiles and conditioners know one channel order per model.
enum class RopeStyle : uint8_t {
  kHalves,       ///< (i, i + dim / 2)
  kInterleaved,  ///< (2 i, 2 i + 1)
};

enum class RopeScalingKind : uint8_t {
  kNone,
  kLinear,
  kLlama3,
  kYarn,
  kDynamic,  ///< Plain within the trained context, which is the model's limit: beyond it cached keys would be wrong.
};
std::string_view to_string(RopeScalingKind kind);

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  float factor = 1.0f;
  int32_t original_context = 0;        ///< llama3, yarn
  float low_frequency_factor = 1.0f;   ///< llama3
  float high_frequency_factor = 4.0f;  ///< llama3
  float fast_turns = 32.0f;            ///< yarn: pairs that turn more often keep their frequency,
  float slow_turns = 1.0f;             ///< those that turn less often are slowed down by `factor`.
  bool whole_pairs = true;             ///< yarn: the ramp between them starts and ends at whole pairs.
  float attention_factor = 1.0f;       ///< yarn: scale of queries and keys.

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct RopeConfig {
  int32_t dim = 0;  ///< Leading channels of a head that are turned; 0 = no RoPE.
  float theta = 10000.0f;
  RopeStyle style = RopeStyle::kHalves;
  RopeScaling scaling;
  std::vector<float> frequency_factors;  ///< [dim / 2] divisors of each frequency; empty = 1. Excludes `scaling`.

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

enum class Activation : uint8_t {
  kSilu,
  kGeluTanh,
  kClampedSwish,  ///< gpt-oss: a swish of slope 1.702 and both halves clamped to `activation_limit`.
};

/// A feed-forward layer of experts.
struct ExpertsConfig {
  int32_t count = 0;       ///< 0 = one dense feed-forward layer.
  int32_t used = 0;        ///< Per token.
  bool normalised = true;  ///< The weights of a token's experts sum to 1.
  bool biases = false;     ///< Of the router and of all products.

  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

/// What one decoder layer is.
struct LayerConfig {
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  float softmax_scale = 0.0f;
  int32_t window = 0;     ///< Sliding-window attention over this many keys; 0 = full attention.
  float soft_cap = 0.0f;  ///< Cap of attention scores; 0 = none.
  bool sinks = false;
  bool qk_norm = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool post_norms = false;  ///< Outputs of attention and feed-forward are normed before they are added.
  RopeConfig rope;
  int32_t ffn_size = 0;  ///< Of one expert where there are experts.
  ExpertsConfig experts;
  Activation activation = Activation::kSilu;
  float activation_limit = 0.0f;            ///< kClampedSwish
  std::optional<attn::KvSpec> kv_override;  ///< Cache encoding of this layer whatever the cache's own spec.

  friend bool operator==(const LayerConfig&, const LayerConfig&) = default;
};

/// A decoder-only model as data: everything the decoder, the cache and the facts line need to know but the weights.
struct ModelConfig {
  std::string architecture;  ///< As the checkpoint names it, such as "llama".
  std::string name;
  int32_t vocabulary_size = 0;
  int32_t hidden_size = 0;
  float norm_epsilon = 1e-5f;
  float embedding_scale = 1.0f;
  float final_soft_cap = 0.0f;  ///< Cap of logits; 0 = none.
  bool tied_head = false;
  int32_t context_limit = 0;
  DType kv_dtype = DType::kBf16;  ///< The checkpoint's 16-bit dtype, bf16 for f32 and quantised weights: `--kv auto`.
  std::vector<LayerConfig> layers;

  int32_t num_layers() const { return static_cast<int32_t>(layers.size()); }
};

}  // namespace kvant::engine
