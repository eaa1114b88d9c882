#pragma once

#include <cstddef>
#include <string>

#include <cuda_runtime.h>

#include "core/overlapped_launch.h"
#include "kvant/core/status.h"

namespace kvant {

/// Launches a kernel of one parameter that starts while the stream's previous kernel ends, on Hopper and later.
template <class Params>
Status launch_overlapped(const char* name, void (*kernel)(Params), dim3 grid, unsigned threads, const Params& params,
                         void* stream, size_t shared_bytes = 0) {
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const OverlappedLaunch overlapped(grid, threads, shared_bytes, major >= 9, stream);
  if (error == cudaSuccess) error = cudaLaunchKernelEx(overlapped.config(), kernel, params);
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return {StatusCode::kCudaError,
          std::string("the launch of the ") + name + " kernel failed: " + cudaGetErrorString(error)};
}

}  // namespace kvant
