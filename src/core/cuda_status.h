#pragma once

#include <string_view>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "kvant/core/status.h"

namespace kvant {

/// kCudaError with the call and CUDA's own text. Clears the error, so that a later call does not report it again.
inline Status cuda_status(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return {StatusCode::kCudaError, fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error))};
}

}  // namespace kvant
