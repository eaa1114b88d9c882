#include "ops/expert_routing.h"

#include <algorithm>
#include <cmath>

namespace kvant::ops {

void route_token(const RoutingShape& shape, const float* logits, int32_t* experts, float* weights) {
  for (int32_t place = 0; place < shape.num_used; ++place) {
    int32_t best = -1;
    for (int32_t expert = 0; expert < shape.num_experts; ++expert) {
      const bool taken = std::find(experts, experts + place, expert) != experts + place;
      if (!taken && (best < 0 || logits[expert] > logits[best])) best = expert;
    }
    experts[place] = best;
  }
  const float largest = logits[experts[0]];
  float sum = 0.0f;
  for (int32_t place = 0; place < shape.num_used; ++place) {
    weights[place] = std::exp(logits[experts[place]] - largest);
    sum += weights[place];
  }
  if (!shape.normalise) {
    sum = 0.0f;
    for (int32_t expert = 0; expert < shape.num_experts; ++expert) sum += std::exp(logits[expert] - largest);
  }
  for (int32_t place = 0; place < shape.num_used; ++place) weights[place] /= sum;
}

void sort_by_expert(const RoutingShape& shape, const int32_t* experts, int64_t num_tokens, int32_t* offsets,
                    int32_t* pairs) {
  const auto num_pairs = static_cast<int32_t>(num_tokens * shape.num_used);
  std::fill_n(offsets, shape.num_experts + 1, 0);
  for (int32_t pair = 0; pair < num_pairs; ++pair) ++offsets[experts[pair] + 1];
  for (int32_t expert = 0; expert < shape.num_experts; ++expert) offsets[expert + 1] += offsets[expert];
  // Filling moves every beginning to its end, which is the next one's beginning.
  for (int32_t pair = 0; pair < num_pairs; ++pair) pairs[offsets[experts[pair]]++] = pair;
  for (int32_t expert = shape.num_experts; expert > 0; --expert) offsets[expert] = offsets[expert - 1];
  offsets[0] = 0;
}

}  // namespace kvant::ops
