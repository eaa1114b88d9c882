#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "attn/cuda/common/page_plane.h"
#include "kvant/attn/append.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

struct AgeParams {
  const PageAge* ages;  // [num_ages]
  PagePool base, exact;
  UnitGrid grid[2];        // K, V: a row per (age, token, head)
  const float* scales[2];  // K, V: [scale_count] or null
  uint32_t num_kv_heads;
  uint32_t page_shift;  // log2(page size)
  int32_t scale_count;  // 1 or num_kv_heads
  int32_t elements;     // of a lane: 16, or 4 where a row then fits a warp
  ScalePolicy policy;
};

Status launch_age(const AgeParams& params, cudaStream_t stream);

}  // namespace kvant::attn::cuda
