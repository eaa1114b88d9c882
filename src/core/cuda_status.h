#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "kvant/core/status.h"

namespace kvant {

/// kCudaError with the call and CUDA's own text. Clears the error, so that a later call does not report it again.
/// Without fmt, which nvcc does not compile.
inline Status cuda_status(cudaError_t error, const std::string& call) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return {StatusCode::kCudaError, call + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")"};
}

}  // namespace kvant
