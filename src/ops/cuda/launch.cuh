#pragma once

// Kernels of a step start while the one before them ends (programmatic dependent launch, Hopper and later): what does
// not depend on it, such as reading weights, is done meanwhile. Rules: `wait_for_previous_kernel` comes before the
// first read of what another kernel wrote and before every write; every kernel calls it and `allow_next_kernel`, so
// that waiting for one is waiting for all before it. `allow_next_kernel` comes late, else kernels pile up and each
// slows the one that it waits for.

#include <cstdint>
#include <string>

#include <cuda_runtime.h>

#include "core/kernel_overlap.cuh"
#include "core/overlapped_launch.h"
#include "kvant/core/status.h"

namespace kvant::ops::cuda {

inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// An empty grid is not a launch.
template <class Params>
Status launch(const char* name, void (*kernel)(Params), dim3 grid, int threads, const Params& params, void* stream) {
  if (grid.x == 0 || grid.y == 0) return {};
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const OverlappedLaunch overlapped(grid, static_cast<unsigned>(threads), 0, major >= 9, stream);
  if (error == cudaSuccess) error = cudaLaunchKernelEx(overlapped.config(), kernel, params);
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return {StatusCode::kCudaError,
          std::string("the launch of the ") + name + " kernel failed: " + cudaGetErrorString(error)};
}

}  // namespace kvant::ops::cuda
