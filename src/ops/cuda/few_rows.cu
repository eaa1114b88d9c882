#include "ops/cuda/few_rows.cuh"

#include <string>

#include <cuda_runtime_api.h>

#include "ops/cuda/few_rows.h"

namespace kvant::ops::cuda {
namespace {

template <class Traits>
void launch(const FewRowsParams& params, cudaStream_t stream) {
  constexpr int kPerBlock = Traits::kWarps * Traits::kOutputs;
  few_rows_kernel<Traits>
      <<<static_cast<unsigned>((params.out_features + kPerBlock - 1) / kPerBlock), Traits::kWarps * 32, 0, stream>>>(
          params);
}

}  // namespace

Status multiply_few_rows(const FewRowsArgs& args, void* stream) {
  const FewRowsParams params{.weight = static_cast<const Bf16x8*>(args.weight),
                             .x = static_cast<const Bf16x8*>(args.x),
                             .y = args.y,
                             .out_features = static_cast<int32_t>(args.out_features),
                             .vectors = static_cast<int32_t>(args.in_features / 8),
                             .output = args.output};
  auto* handle = static_cast<cudaStream_t>(stream);
  switch (args.num_rows) {
    case 1: launch<FewRowsTraits<1>>(params, handle); break;
    case 2: launch<FewRowsTraits<2>>(params, handle); break;
    case 3: launch<FewRowsTraits<3>>(params, handle); break;
    case 4: launch<FewRowsTraits<4>>(params, handle); break;
    default:
      return {StatusCode::kInternal, "a product of " + std::to_string(args.num_rows) + " rows is not one of few rows"};
  }
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return {StatusCode::kCudaError,
          std::string("the launch of the few-rows kernel failed: ") + cudaGetErrorString(error)};
}

}  // namespace kvant::ops::cuda
