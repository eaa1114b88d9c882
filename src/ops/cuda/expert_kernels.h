#pragma once

#include <cstdint>

#include "kvant/core/status.h"
#include "ops/expert_routing.h"

// Launches of the kernels behind ops/experts.h. `stream` is a cudaStream_t.
namespace kvant::ops::cuda {

/// Tiles that any choice of experts of so many tokens can need.
int64_t most_expert_tiles(const RoutingShape& shape, int64_t num_tokens);
int64_t expert_tile_bytes();

struct RouteArgs {
  RoutingShape shape;
  int64_t num_tokens = 0;
  const float* logits = nullptr;  ///< [num_tokens, num_experts]
  const float* bias = nullptr;    ///< [num_experts] or null
  int32_t* experts = nullptr;     ///< [num_tokens, num_used]
  float* weights = nullptr;       ///< [num_tokens, num_used]
  int32_t* pairs = nullptr;       ///< [num_tokens * num_used] sorted by expert
  void* tiles = nullptr;          ///< [most_expert_tiles]
};
Status route_experts(const RouteArgs& args, void* stream);

struct ExpertProductArgs {
  RoutingShape shape;
  int64_t num_tokens = 0;
  const void* weights = nullptr;  ///< [num_experts, outputs, inputs] bf16
  const float* bias = nullptr;    ///< [num_experts, outputs] or null
  const void* x = nullptr;        ///< bf16 rows of tokens, or of pairs
  bool x_by_pair = false;
  void* y = nullptr;  ///< [num_tokens * num_used, outputs] bf16, or fp32
  bool y_is_f32 = false;
  const int32_t* pairs = nullptr;
  const void* tiles = nullptr;
  int64_t outputs = 0;
  int64_t inputs = 0;
};
Status multiply_experts(const ExpertProductArgs& args, void* stream);

/// sum [num_tokens, width] += weighted outputs [num_tokens, num_used, width].
Status combine_experts(const RoutingShape& shape, const float* outputs, const float* weights, int64_t num_tokens,
                       int64_t width, float* sum, void* stream);

/// Experts that the kernels can route.
Status check_expert_counts(const RoutingShape& shape);

}  // namespace kvant::ops::cuda
