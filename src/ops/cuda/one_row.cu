#include "ops/cuda/one_row.h"

#include "ops/cuda/launch.cuh"
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
  return launch("one-row", one_row_kernel<Traits>,
                static_cast<unsigned>((params.out_features + kPerBlock - 1) / kPerBlock), Traits::kWarps * 32, params,
                stream);
}

}  // namespace kvant::ops::cuda
