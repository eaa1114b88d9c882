#pragma once

#include <cstdint>

#include "kvant/attn/attention.h"

namespace kvant::attn::cpu {

/// Running softmax of one row over some keys, in base 2: values are sums of 2^(s - max) v, unnormalised.
struct Softmax {
  float max = 0.0f;  ///< -inf when no key was seen.
  float sum = 0.0f;
};

/// Factors that bring two disjoint parts of a row to a common maximum. Total: two empty parts give an empty one.
struct MergeFactors {
  float acc = 1.0f;
  float part = 1.0f;
};
MergeFactors merge_softmax(Softmax& acc, const Softmax& part);

/// out[first + i] = values[i] * scale, rounded to dtype.
void store_values(const float* values, float scale, DType dtype, int64_t first, int32_t count, void* out);

/// Where finished rows go.
struct RowSink {
  void* out = nullptr;           ///< [rows, num_q_heads, head_dim_v] of dtype
  float* lse = nullptr;          ///< [rows, num_q_heads]; may be null
  const float* sinks = nullptr;  ///< [num_q_heads]; may be null
  DType dtype = DType::kF32;
  int32_t num_q_heads = 0;
  int32_t head_dim_v = 0;

  /// Adds the sink to the denominator, normalises and writes. `values` is [head_dim_v].
  void write(int64_t token, int32_t q_head, const float* values, const Softmax& softmax) const;
};

}  // namespace kvant::attn::cpu
