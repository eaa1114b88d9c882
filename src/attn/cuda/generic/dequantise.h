#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "attn/cuda/common/page_plane.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

struct DequantiseParams {
  const int64_t* slots;  // [num_slots]
  float* out[2];         // K, V: [num_slots, num_kv_heads, head_dim]
  PagePool base, exact;
  UnitGrid grid[2];        // K, V: a row per (slot, head)
  const float* scales[2];  // K, V: [scale_count] or null
  uint32_t num_kv_heads;
  uint32_t page_shift;  // log2(page size)
  int32_t scale_count;  // 1 or num_kv_heads
};

Status launch_dequantise(const DequantiseParams& params, cudaStream_t stream);

}  // namespace kvant::attn::cuda
