#include "ops/cuda/expert_kernels.h"

#include <algorithm>
#include <string>

#include "ops/cuda/expert_product.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {
namespace {

using Traits = ExpertProductTraits;

template <class Output>
Status multiply(const ExpertProductArgs& args, void* stream) {
  const ExpertProductParams<Output> params{.weights = static_cast<const __nv_bfloat16*>(args.weights),
                                           .bias = args.bias,
                                           .x = static_cast<const __nv_bfloat16*>(args.x),
                                           .y = static_cast<Output*>(args.y),
                                           .tiles = static_cast<const ExpertTile*>(args.tiles),
                                           .pairs = args.pairs,
                                           .outputs = static_cast<int32_t>(args.outputs),
                                           .inputs = static_cast<int32_t>(args.inputs),
                                           .x_divisor = args.x_by_pair ? 1 : args.shape.num_used};
  const dim3 grid(static_cast<unsigned>(most_expert_tiles(args.shape, args.num_tokens)),
                  blocks_for(args.outputs, Traits::kOutputs));
  return launch("expert product", expert_product_kernel<Traits, Output>, grid, Traits::kThreads, params, stream);
}

}  // namespace

int64_t most_expert_tiles(const RoutingShape& shape, int64_t num_tokens) {
  const int64_t pairs = num_tokens * shape.num_used;
  return std::min(pairs, pairs / kExpertTileRows + shape.num_experts);
}

int64_t expert_tile_bytes() { return sizeof(ExpertTile); }

Status route_experts(const RouteArgs& args, void* stream) {
  const RouteParams route{.logits = args.logits,
                          .bias = args.bias,
                          .experts = args.experts,
                          .weights = args.weights,
                          .num_tokens = static_cast<int32_t>(args.num_tokens),
                          .num_experts = args.shape.num_experts,
                          .num_used = args.shape.num_used,
                          .normalise = args.shape.normalise};
  KVANT_RETURN_IF_ERROR(
      launch("routing", route_kernel, blocks_for(args.num_tokens, kRouteWarps), kRouteWarps * 32, route, stream));
  const SortPairsParams sort{.experts = args.experts,
                             .pairs = args.pairs,
                             .tiles = static_cast<ExpertTile*>(args.tiles),
                             .num_pairs = static_cast<int32_t>(args.num_tokens * args.shape.num_used),
                             .num_experts = args.shape.num_experts,
                             .max_tiles = static_cast<int32_t>(most_expert_tiles(args.shape, args.num_tokens))};
  return launch("sort of experts", sort_pairs_kernel, 1, kSortThreads, sort, stream);
}

Status multiply_experts(const ExpertProductArgs& args, void* stream) {
  return args.y_is_f32 ? multiply<float>(args, stream) : multiply<__nv_bfloat16>(args, stream);
}

Status combine_experts(const RoutingShape& shape, const float* outputs, const float* weights, int64_t num_tokens,
                       int64_t width, float* sum, void* stream) {
  const CombineParams params{.outputs = outputs,
                             .weights = weights,
                             .sum = sum,
                             .count = num_tokens * width,
                             .num_used = shape.num_used,
                             .width = static_cast<int32_t>(width)};
  return launch("sum of experts", combine_kernel, blocks_for(params.count, kCombineThreads), kCombineThreads, params,
                stream);
}

Status check_expert_counts(const RoutingShape& shape) {
  if (shape.num_experts <= kMaxExperts) return {};
  return {StatusCode::kUnsupported, std::to_string(shape.num_experts) + " experts a layer: CUDA routes up to " +
                                        std::to_string(kMaxExperts) + "; run the model on the CPU"};
}

}  // namespace kvant::ops::cuda
