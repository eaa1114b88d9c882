#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "attn/cuda/common/page_plane.h"
#include "kvant/attn/kv_format.h"
#include "kvant/core/dtype.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

/// How a key row is conditioned. Null pointers leave their step out.
struct ConditionParams {
  const float* mu;         // [num_kv_heads, head_dim_k] or null
  const float* zi;         // [num_kv_heads, head_dim_k] or null; with it the row is rotated
  uint32_t rotated_lanes;  // lanes of one Hadamard block, a power of two
  float factor;            // fl(1 / sqrt(block))
};

/// New rows of K or of V.
struct AppendRows {
  const void* values;    // [num_tokens, num_kv_heads, head_dim] of dtype
  int64_t token_stride;  // elements
  const float* scales;   // [scale_count] or null
  UnitGrid grid;         // a row per (token, head)
};

struct AppendParams {
  AppendRows rows[2];    // K, V
  const int64_t* slots;  // [num_tokens]
  PagePool base, exact;
  ConditionParams condition;
  uint32_t num_kv_heads;
  uint32_t page_shift;  // log2(page size)
  int32_t scale_count;  // 1 or num_kv_heads
  int32_t elements;     // of a lane: 16, or 4 where a row then fits a warp
  DType dtype;
  ScalePolicy policy;
};

Status launch_append(const AppendParams& params, cudaStream_t stream);

}  // namespace kvant::attn::cuda
