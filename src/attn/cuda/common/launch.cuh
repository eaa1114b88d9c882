#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_runtime.h>

#include "attn/cuda/common/page_plane.h"
#include "core/kernel_overlap.cuh"
#include "core/overlapped_launch.cuh"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

/// What such a kernel does first. The next one may take the room that few blocks leave; many would share
/// multiprocessors with its early blocks, unevenly, and end up to twice as late: measured.
template <int kElements = kUnit>
__device__ __forceinline__ void start_row_units() {
  constexpr uint32_t kFewBlocks = kElements == kUnit ? 4 : 32;
  if (gridDim.x <= kFewBlocks) allow_next_kernel();
}

/// Launches a kernel that walks K rows (grid.y 0) and V rows (grid.y 1) by warps.
template <class Params>
Status launch_row_units(const char* name, void (*kernel)(Params), const Params& params, const UnitGrid& k,
                        const UnitGrid& v, cudaStream_t stream) {
  const int64_t blocks = std::max(k.num_blocks(), v.num_blocks());
  if (blocks == 0) return {};
  return launch_overlapped(name, kernel, dim3(static_cast<unsigned>(blocks), 2), kWriterThreads, params, stream);
}

__device__ __forceinline__ float scale_of(const float* scales, int32_t count, uint32_t head) {
  return scales == nullptr ? 1.0f : scales[count == 1 ? 0 : head];
}

}  // namespace kvant::attn::cuda
