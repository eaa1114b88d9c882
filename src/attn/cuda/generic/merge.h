#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "kvant/core/dtype.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

/// Partial results of one call: their pointers travel with the launch.
inline constexpr int32_t kMaxMergeParts = 128;

struct MergeParams {
  const float* outs[kMaxMergeParts];  // each [num_rows, head_dim]
  const float* lses[kMaxMergeParts];  // each [num_rows]
  const float* sinks;                 // [num_q_heads] or null
  void* out;                          // [num_rows, head_dim]
  float* lse;                         // [num_rows] or null
  int64_t num_rows;                   // tokens x query heads
  int32_t num_parts, num_q_heads, head_dim;
  DType out_dtype;
};

Status launch_merge(const MergeParams& params, cudaStream_t stream);

}  // namespace kvant::attn::cuda
