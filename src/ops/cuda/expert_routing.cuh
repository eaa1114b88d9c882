#pragma once

// Which experts the tokens of a batch use: route_kernel picks them, a warp per token; sort_pairs_kernel, one block,
// sorts pairs of token and place by expert and cuts them into tiles for the products; combine_kernel adds the outputs
// of a token's experts to the residual stream in the order of places, so that the sum does not depend on the batch.

#include <cstdint>

#include "ops/cuda/bf16_vector.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {

inline constexpr int kRouteWarps = 4;
inline constexpr int kMaxUsedExperts = 32;
inline constexpr int kSortThreads = 256;
inline constexpr int kMaxExperts = 1024;
inline constexpr int kExpertTileRows = 16;
inline constexpr int kCombineThreads = 256;

struct RouteParams {
  const float* logits;  // [num_tokens, num_experts]
  const float* bias;    // [num_experts] or null
  int32_t* experts;     // [num_tokens, num_used]
  float* weights;       // [num_tokens, num_used]
  int32_t num_tokens;
  int32_t num_experts;
  int32_t num_used;
  bool normalise;
};

namespace detail {

/// The larger logit, the lower index on ties.
__device__ __forceinline__ void keep_better(float& logit, int32_t& index, float other_logit, int32_t other_index) {
  if (other_logit > logit || (other_logit == logit && other_index < index)) {
    logit = other_logit;
    index = other_index;
  }
}

}  // namespace detail

__global__ void __launch_bounds__(kRouteWarps * 32) route_kernel(const __grid_constant__ RouteParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int32_t token = static_cast<int32_t>(blockIdx.x) * kRouteWarps + static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  if (token >= params.num_tokens) return;
  const float* row = params.logits + static_cast<int64_t>(token) * params.num_experts;
  const auto logit_of = [&](int32_t expert) {
    const float logit = row[expert] + (params.bias == nullptr ? 0.0f : params.bias[expert]);
    return isnan(logit) ? -INFINITY : logit;
  };
  int32_t* experts = params.experts + static_cast<int64_t>(token) * params.num_used;
  float* weights = params.weights + static_cast<int64_t>(token) * params.num_used;
  // Experts come in falling order, so each is the best of those after the one before it.
  float last_logit = INFINITY, largest = 0.0f, sum = 0.0f;
  int32_t last = -1;
  for (int32_t place = 0; place < params.num_used; ++place) {
    float best = -INFINITY;
    int32_t index = params.num_experts;
    for (int32_t expert = lane; expert < params.num_experts; expert += 32) {
      const float logit = logit_of(expert);
      const bool is_after = logit < last_logit || (logit == last_logit && expert > last);
      if (is_after) detail::keep_better(best, index, logit, expert);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, distance);
      const int32_t other_index = __shfl_xor_sync(0xffffffffu, index, distance);
      detail::keep_better(best, index, other, other_index);
    }
    if (place == 0) largest = best;
    const float share = best == largest ? 1.0f : __expf(best - largest);
    sum += share;
    last_logit = best;
    last = index;
    if (lane == 0) {
      experts[place] = index;
      weights[place] = share;
    }
  }
  if (!params.normalise) {
    float all = 0.0f;
    for (int32_t expert = lane; expert < params.num_experts; expert += 32) all += __expf(logit_of(expert) - largest);
    sum = warp_sum(all);
  }
  __syncwarp();
  for (int32_t place = lane; place < params.num_used; place += 32) weights[place] /= sum;
}

/// Rows of one expert that a block multiplies.
struct ExpertTile {
  int32_t expert;
  int32_t first;  // in `pairs`
  int32_t count;
};

struct SortPairsParams {
  const int32_t* experts;  // [num_pairs]
  int32_t* pairs;          // [num_pairs], by expert
  ExpertTile* tiles;       // [max_tiles]; those past the last have no rows
  int32_t num_pairs;
  int32_t num_experts;
  int32_t max_tiles;
};

__global__ void __launch_bounds__(kSortThreads) sort_pairs_kernel(const __grid_constant__ SortPairsParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  __shared__ int32_t begins[kMaxExperts + 1];
  __shared__ int32_t next[kMaxExperts];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < params.num_experts; i += kSortThreads) next[i] = 0;
  __syncthreads();
  for (int32_t pair = thread; pair < params.num_pairs; pair += kSortThreads) atomicAdd(&next[params.experts[pair]], 1);
  __syncthreads();
  if (thread == 0) {
    int32_t tile = 0;
    begins[0] = 0;
    for (int32_t expert = 0; expert < params.num_experts; ++expert) {
      const int32_t first = begins[expert], end = first + next[expert];
      begins[expert + 1] = end;
      next[expert] = first;
      for (int32_t row = first; row < end; row += kExpertTileRows)
        params.tiles[tile++] = {.expert = expert, .first = row, .count = min(kExpertTileRows, end - row)};
    }
    for (; tile < params.max_tiles; ++tile) params.tiles[tile] = {.expert = 0, .first = 0, .count = 0};
  }
  __syncthreads();
  for (int32_t pair = thread; pair < params.num_pairs; pair += kSortThreads)
    params.pairs[atomicAdd(&next[params.experts[pair]], 1)] = pair;
}

struct CombineParams {
  const float* outputs;  // [num_tokens, num_used, width]
  const float* weights;  // [num_tokens, num_used]
  float* sum;            // [num_tokens, width]
  int64_t count;         // num_tokens * width
  int32_t num_used;
  int32_t width;
};

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const __grid_constant__ CombineParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x;
  if (index >= params.count) return;
  const int64_t token = index / params.width, channel = index - token * params.width;
  const float* weights = params.weights + token * params.num_used;
  const float* outputs = params.outputs + token * params.num_used * params.width + channel;
  float sum = params.sum[index];
  for (int32_t place = 0; place < params.num_used; ++place)
    sum += weights[place] * outputs[static_cast<int64_t>(place) * params.width];
  params.sum[index] = sum;
}

}  // namespace kvant::ops::cuda
