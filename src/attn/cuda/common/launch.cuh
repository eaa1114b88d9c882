#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

#include "attn/cuda/common/page_plane.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

inline constexpr int kWriterThreads = 128;

/// Launches a kernel that walks K rows (grid.y 0) and V rows (grid.y 1) by warps.
template <class Params>
Status launch_row_units(const char* name, void (*kernel)(Params), const Params& params, const UnitGrid& k,
                        const UnitGrid& v, cudaStream_t stream) {
  constexpr int64_t kWarps = kWriterThreads / 32;
  const int64_t blocks = (std::max(k.num_warps(), v.num_warps()) + kWarps - 1) / kWarps;
  if (blocks == 0) return {};
  kernel<<<dim3(static_cast<unsigned>(blocks), 2), kWriterThreads, 0, stream>>>(params);
  if (const cudaError_t error = cudaPeekAtLastError(); error != cudaSuccess) {
    return {StatusCode::kCudaError,
            std::string("the launch of the ") + name + " kernel failed: " + cudaGetErrorString(cudaGetLastError())};
  }
  return {};
}

__device__ __forceinline__ float scale_of(const float* scales, int32_t count, uint32_t head) {
  return scales == nullptr ? 1.0f : scales[count == 1 ? 0 : head];
}

}  // namespace kvant::attn::cuda
