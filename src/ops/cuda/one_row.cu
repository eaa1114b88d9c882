#include "ops/cuda/one_row.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/one_row.cuh"

namespace kvant::ops::cuda {

namespace {

template <int kWarps>
Status launch_one_row(const OneRowParams& params, void* stream) {
  using Traits = OneRowTraits<kWarps>;
  return launch("one-row", one_row_kernel<Traits>, blocks_for(params.out_features, Traits::kOutputs),
                Traits::kWarps * 32, params, stream);
}

}  // namespace

Status multiply_one_row(const OneRowArgs& args, void* stream) {
  const OneRowParams params{.weight = static_cast<const Bf16x8*>(args.weight),
                            .x = static_cast<const Bf16x8*>(args.x),
                            .y = args.y,
                            .out_features = static_cast<int32_t>(args.out_features),
                            .vectors = static_cast<int32_t>(args.in_features / 8),
                            .output = args.output};
  // Rows that eight warps would not fill once are shared by two.
  constexpr int32_t kLongRow = 256;
  return params.vectors >= kLongRow ? launch_one_row<8>(params, stream) : launch_one_row<2>(params, stream);
}

}  // namespace kvant::ops::cuda
