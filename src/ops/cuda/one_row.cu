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

}  // namespace

Status multiply_one_row(const OneRowArgs& args, void* stream) {
  OneRowParams params;
  params.y = args.y;
  params.out_features = static_cast<int32_t>(args.out_features);
  params.vectors = static_cast<int32_t>(args.in_features / 8);
  params.output = args.output;
  params.weight = static_cast<const Bf16x8*>(args.weight);
  params.x = static_cast<const Bf16x8*>(args.x);
  // Rows that eight warps would not fill once are shared by two.
  return params.vectors >= 256 ? launch_one_row<OneRowTraits<8>>(params, stream)
                               : launch_one_row<OneRowTraits<2>>(params, stream);
}

Status multiply_one_fp8_row(const OneFp8RowArgs& args, void* stream) {
  OneFp8RowParams params;
  params.y = args.y;
  params.out_features = static_cast<int32_t>(args.out_features);
  params.vectors = static_cast<int32_t>(args.in_features / 16);
  params.output = args.output;
  params.weight = static_cast<const int4*>(args.weight);
  params.scales = reinterpret_cast<const float4*>(args.scales);
  params.x = static_cast<const int4*>(args.x);
  params.x_scales = args.x_scales;
  // As many warps as read a row in one go, at most eight.
  if (params.vectors <= 128) return launch_one_row<OneFp8RowTraits<2>>(params, stream);
  return params.vectors <= 256 ? launch_one_row<OneFp8RowTraits<4>>(params, stream)
                               : launch_one_row<OneFp8RowTraits<8>>(params, stream);
}

}  // namespace kvant::ops::cuda
