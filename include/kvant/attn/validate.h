#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvant/attn/attention.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/core/dtype.h"
#include "kvant/core/status.h"

namespace kvant::attn {

/// How a checkpoint is quantised, as far as its cache is concerned.
enum class CheckpointKv : uint8_t {
  kNone,       ///< Weights only, or not at all: no cache scales come with it.
  kFp8Scales,  ///< Cache scales for e4m3.
  kFp4Scales,  ///< Cache scales for nvfp4.
};

/// What a model asks of one layer's attention, before any weight is read.
struct ModelAttentionConfig {
  int32_t layer = -1;  ///< Named in errors; negative = not of one layer.
  std::string k_format = "auto";
  std::string v_format = "auto";
  DType model_dtype = DType::kBf16;
  CheckpointKv checkpoint = CheckpointKv::kNone;
  bool mla = false;              ///< Multi-head latent attention.
  bool cross_attention = false;  ///< Encoder or cross attention.
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  int32_t page_size = 16;
  int32_t window = 0;
  float soft_cap = 0.0f;
  std::optional<int64_t> num_sinks{};  ///< Entries of the checkpoint's sink tensor, if it has one.
  ExactEdges edges{};
  KeyConditioning conditioning = KeyConditioning::kNone;
  ContextParallel context_parallel{};
  DraftMask draft_mask = DraftMask::kCausal;
  int32_t max_query_len = 1;
  int32_t mask_row_words = 0;  ///< Row stride of packed draft masks.
  bool row_positions = false;  ///< A position per row comes with every batch.
};

/// Checks everything that can be known without weights, one error at a time; each names value, need and remedy.
///
/// A cache in a 16-bit format other than the model's dtype is allowed: kernels convert while reading, and outputs are
/// in the model's dtype either way. What a device's kernels offer is select_kernel's question.
Status validate_model_attention(const ModelAttentionConfig& config);

/// The same for the parts that an AttnDesc and AttnLimits hold; make_plan calls it.
Status validate_attention(const AttnDesc& desc, const AttnLimits& limits);

}  // namespace kvant::attn
