#include "ops/cuda/one_row.h"

#include <string>

#include <cuda_runtime_api.h>

#include "ops/cuda/one_row.cuh"

namespace kvant::ops::cuda {

Status multiply_one_row(const OneRowArgs& args, void* stream) {
  using Traits = OneRowTraits;
  const OneRowParams params{.weight = static_cast<const Bf16x8*>(args.weight),
                            .x = static_cast<const Bf16x8*>(args.x),
                            .y = args.y,
                            .out_features = static_cast<int32_t>(args.out_features),
                            .vectors = static_cast<int32_t>(args.in_features / 8),
                            .output = args.output};
  constexpr int kPerBlock = Traits::kWarps * Traits::kOutputs;
  one_row_kernel<Traits><<<static_cast<unsigned>((params.out_features + kPerBlock - 1) / kPerBlock),
                           Traits::kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(params);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return {StatusCode::kCudaError, std::string("the launch of the one-row kernel failed: ") + cudaGetErrorString(error)};
}

}  // namespace kvant::ops::cuda
