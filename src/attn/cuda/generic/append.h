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

/// What is done to heads of one kind before they are stored: kvant/attn/head_preparation.h.
struct PrepareRows {
  const void* values;    // [num_tokens, num_heads, head_dim] of dtype
  int64_t token_stride;  // elements
  UnitGrid grid;         // a row per (token, head)
  uint32_t num_heads;
  uint32_t first_block;         // of those that walk these rows
  uint32_t num_pairs = 0;       // that RoPE turns
  const float* bias = nullptr;  // [num_heads, head_dim] or null
  const float* norm = nullptr;  // [head_dim] or null
  void* out = nullptr;          // prepared heads, or null
  int64_t out_token_stride = 0;
};

struct PreparedAppendParams {
  AppendParams append;   // its rows' values, strides and grids are those below
  PrepareRows heads[3];  // K, V, Q
  const float* cosines;  // [num_tokens, num_pairs]
  const float* sines;    // [num_tokens, num_pairs]
  float epsilon;
  bool halves;  // RoPE pairs (i, i + num_pairs), else (2 i, 2 i + 1)
};

Status launch_prepared_append(const PreparedAppendParams& params, int64_t num_blocks, cudaStream_t stream);

}  // namespace kvant::attn::cuda
