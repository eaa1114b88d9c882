#pragma once

#include <cstdint>

namespace kvant::ops {

struct RoutingShape {
  int32_t num_experts = 0;
  int32_t num_used = 0;   ///< Of them per token.
  bool normalise = true;  ///< The weights of a token's experts sum to 1; else they are shares among all experts.
};

/// The experts of one token: those with the largest logits, best first, the lowest index on ties. Weights are softmax
/// shares. `logits` [num_experts], `experts` and `weights` [num_used].
void route_token(const RoutingShape& shape, const float* logits, int32_t* experts, float* weights);

/// Pairs (token, place among its experts) of a batch, sorted by expert, then by token. `experts` [num_tokens,
/// num_used]; `offsets` [num_experts + 1] receives where each expert's pairs begin in `pairs` [num_tokens * num_used],
/// which receives token * num_used + place.
void sort_by_expert(const RoutingShape& shape, const int32_t* experts, int64_t num_tokens, int32_t* offsets,
                    int32_t* pairs);

}  // namespace kvant::ops
