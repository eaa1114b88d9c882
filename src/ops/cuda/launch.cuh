#pragma once

#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

#include "kvant/core/status.h"

namespace kvant::ops::cuda {

inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// An empty grid is not a launch.
template <class Params>
Status launch(const char* name, void (*kernel)(Params), dim3 grid, int threads, const Params& params, void* stream) {
  if (grid.x == 0 || grid.y == 0) return {};
  kernel<<<grid, static_cast<unsigned>(threads), 0, static_cast<cudaStream_t>(stream)>>>(params);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return {StatusCode::kCudaError,
          std::string("the launch of the ") + name + " kernel failed: " + cudaGetErrorString(error)};
}

}  // namespace kvant::ops::cuda
