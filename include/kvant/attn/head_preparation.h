#pragma once

#include <cstdint>

#include "kvant/core/rope_pairs.h"

namespace kvant::attn {

/// What a model does to heads between their projection and attention: bias, RMS norm over the head, RoPE, in this
/// order, each where given. In fp32, rounded once, to the dtype of what came in, before keys are conditioned. All
/// pointers are memory of the call's device.
struct HeadPreparation {
  const float* q_bias = nullptr;  ///< [num_q_heads, head_dim_k]
  const float* k_bias = nullptr;  ///< [num_kv_heads, head_dim_k]
  const float* v_bias = nullptr;  ///< [num_kv_heads, head_dim_v]
  const float* q_norm = nullptr;  ///< [head_dim_k]: x / sqrt(mean(x^2) + norm_epsilon) * q_norm
  const float* k_norm = nullptr;  ///< [head_dim_k]
  float norm_epsilon = 0.0f;
  int32_t num_pairs = 0;           ///< RoPE turns the leading 2 * num_pairs channels of queries and keys; 0 = none.
  const float* cosines = nullptr;  ///< [num_tokens, num_pairs]
  const float* sines = nullptr;    ///< [num_tokens, num_pairs]
  RopePairs pairs = RopePairs::kHalves;

  const void* q = nullptr;     ///< [num_tokens, num_q_heads, head_dim_k] queries to prepare; null = none.
  int64_t q_token_stride = 0;  ///< Elements between tokens; 0 = dense.
  int32_t num_q_heads = 0;
  void* q_out = nullptr;  ///< [num_tokens, num_q_heads, head_dim_k], dense; of every token, whatever its slot.
  /// Where prepared keys and values go besides the cache, with the strides of k and v, which they may overwrite; null =
  /// nowhere.
  void* k_out = nullptr;
  void* v_out = nullptr;

  /// Whether there is anything to do.
  bool any() const {
    return q != nullptr || q_bias != nullptr || k_bias != nullptr || v_bias != nullptr || q_norm != nullptr ||
           k_norm != nullptr || num_pairs != 0 || k_out != nullptr || v_out != nullptr;
  }
};

}  // namespace kvant::attn
