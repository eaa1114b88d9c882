#pragma once

// Kernels of a step start while the one before them ends (programmatic dependent launch, Hopper and later): what does
// not depend on it, such as reading weights, is done meanwhile. Rules: `wait_for_previous` comes before the first read
// of what another kernel wrote and before every write; every kernel calls both functions, so that waiting for one is
// waiting for all before it. Older GPUs run kernels one after another, and both functions do nothing.

#include <cstdint>
#include <string>

#include <cuda_runtime.h>

#include "kvant/core/status.h"

namespace kvant::ops::cuda {

inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// Until the kernels before this one have ended and their writes are seen.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The next kernel may take the room that this one leaves. Called late, else kernels pile up and each slows the one
/// that it waits for.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// An empty grid is not a launch.
template <class Params>
Status launch(const char* name, void (*kernel)(Params), dim3 grid, int threads, const Params& params, void* stream) {
  if (grid.x == 0 || grid.y == 0) return {};
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = major >= 9 ? 1 : 0;
  if (error == cudaSuccess) error = cudaLaunchKernelEx(&config, kernel, params);
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return {StatusCode::kCudaError,
          std::string("the launch of the ") + name + " kernel failed: " + cudaGetErrorString(error)};
}

}  // namespace kvant::ops::cuda
