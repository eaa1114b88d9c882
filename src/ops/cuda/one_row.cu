#include "ops/cuda/one_row.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/one_row.cuh"

namespace kvant::ops::cuda {

namespace {

template <class Traits>
Status launch_one_row(const typename Traits::Params& params, void* stream) {
  return launch("one-row", one_row_kernel<Traits>, blocks_for(params.out_features, kOneRowOutputs), Traits::kWarps * 32,
                params, stream);
}

/// `values` fit a vector.
template <class Args>
OneRowShape shape_of(const Args& args, int64_t values) {
  return {.y = args.y,
          .out_features = static_cast<int32_t>(args.out_features),
          .vectors = static_cast<int32_t>(args.in_features / values),
          .output = args.output};
}

}  // namespace

Status multiply_one_row(const OneRowArgs& args, void* stream) {
  const OneRowParams params{shape_of(args, 8), static_cast<const Bf16x8*>(args.weight),
                            static_cast<const Bf16x8*>(args.x)};
  // Rows that eight warps would not fill once are shared by two.
  return params.vectors >= 256 ? launch_one_row<OneRowTraits<8>>(params, stream)
                               : launch_one_row<OneRowTraits<2>>(params, stream);
}

Status multiply_one_fp8_row(const OneFp8RowArgs& args, void* stream) {
  const OneFp8RowParams params{shape_of(args, 16), static_cast<const int4*>(args.weight),
                               reinterpret_cast<const float4*>(args.scales), static_cast<const int4*>(args.x),
                               args.x_scales};
  // As many warps as read a row in one go, at most eight.
  if (params.vectors <= 128) return launch_one_row<OneFp8RowTraits<2>>(params, stream);
  return params.vectors <= 256 ? launch_one_row<OneFp8RowTraits<4>>(params, stream)
                               : launch_one_row<OneFp8RowTraits<8>>(params, stream);
}

}  // namespace kvant::ops::cuda
