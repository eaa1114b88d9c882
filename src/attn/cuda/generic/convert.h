#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "attn/cuda/common/page_plane.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

struct ConvertParams {
  PagePool from, to;  // the same formats and sizes
  UnitGrid grid[2];   // K, V: a row per (page, token, head)
  uint32_t num_kv_heads;
  uint32_t page_shift;  // log2(page size)
};

Status launch_convert(const ConvertParams& params, cudaStream_t stream);

}  // namespace kvant::attn::cuda
