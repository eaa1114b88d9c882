#pragma once

// logprobs_kernel: of rows of logits as the model gave them, the log of the sum of their exponentials and the most
// likely tokens, a block per row. Each thread knows the best of its own logits; the block takes the best of all, and
// the warp of its thread looks for that thread's next one. drawn_logprob_kernel, after the draw: the log probability of
// the drawn token. Sums are double, as on the CPU.

#include <cstdint>

#include "ops/cuda/argmax.cuh"
#include "ops/cuda/change_logits.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/draw.h"

namespace kvant::ops::cuda {

inline constexpr int kLogprobThreads = 1024;

struct LogprobParams {
  const float* logits;         // [num_rows, vocabulary]
  const Draw* draws;           // by row_indices, or [num_rows] where that is null
  const int32_t* row_indices;  // [num_rows] or null
  double* log_sums;            // [num_rows]
  DrawnLogprobs* out;          // [num_rows]
  int32_t vocabulary;
};

struct DrawnLogprobParams {
  const float* logits;  // [num_rows, vocabulary], changed
  const Draw* draws;
  const int32_t* row_indices;
  const LogitChange* changes;  // null = none of any row
  const float* before;         // like changes
  const double* log_sums;
  const int32_t* drawn;  // [num_rows]
  DrawnLogprobs* out;
  int32_t vocabulary;
};

namespace detail {

/// Combines one value per thread; every thread gets the result.
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T value, const Combine& combine) {
  __shared__ T parts[kLogprobThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  __syncthreads();  // The parts of the reduction before have been read.
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[threadIdx.x % 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}
static_assert(kLogprobThreads / 32 == 32, "a warp combines the parts of all warps");

__device__ __forceinline__ float logprob_of(float logit, double log_sum) {
  return static_cast<float>(static_cast<double>(logit) - log_sum);
}

}  // namespace detail

__global__ void __launch_bounds__(kLogprobThreads) logprobs_kernel(const __grid_constant__ LogprobParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int32_t alternatives = params.draws[detail::draw_index(params.row_indices, blockIdx.x)].alternatives;
  if (alternatives < 0) return;
  const float* logits = params.logits + static_cast<int64_t>(blockIdx.x) * params.vocabulary;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float largest = -INFINITY;
  for (int32_t i = thread; i < params.vocabulary; i += kLogprobThreads) largest = fmaxf(largest, logits[i]);
  largest = detail::block_reduce(largest, [](float a, float b) { return fmaxf(a, b); });
  double sum = 0.0;
  for (int32_t i = thread; i < params.vocabulary; i += kLogprobThreads)
    sum += exp(static_cast<double>(logits[i]) - largest);
  sum = detail::block_reduce(sum, [](double a, double b) { return a + b; });
  const double log_sum = largest + log(sum);
  if (thread == 0) params.log_sums[blockIdx.x] = log_sum;

  // Keys of what thread `owner` has below `bound`, from every `stride`-th of its logits on.
  using Key = unsigned long long;
  const auto best_below = [&](int32_t owner, Key bound, int32_t first, int32_t stride) {
    Key best = 0;
    for (int32_t i = owner + first * kLogprobThreads; i < params.vocabulary; i += stride * kLogprobThreads) {
      const Key key = detail::argmax_key(detail::logprob_of(logits[i], log_sum), i);
      if (key < bound) best = detail::larger(best, key);
    }
    return best;
  };
  DrawnLogprobs& out = params.out[blockIdx.x];
  Key own = alternatives > 0 ? best_below(thread, ~Key{0}, 0, 1) : 0;
  for (int32_t rank = 0; rank < min(alternatives, params.vocabulary); ++rank) {
    const Key best = detail::block_reduce(own, [](Key a, Key b) { return detail::larger(a, b); });
    const auto token = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
    const int32_t owner = token % kLogprobThreads;
    if (thread == owner) {
      out.tokens[rank] = token;
      out.logprobs[rank] = detail::logprob_of(logits[token], log_sum);
    }
    if (thread / 32 != owner / 32) continue;
    Key next = best_below(owner, best, thread % 32, 32);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      next = detail::larger(next, __shfl_xor_sync(0xffffffffu, next, distance));
    if (thread == owner) own = next;
  }
}

/// A warp per row.
__global__ void __launch_bounds__(32) drawn_logprob_kernel(const __grid_constant__ DrawnLogprobParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const Draw draw = params.draws[detail::draw_index(params.row_indices, blockIdx.x)];
  if (draw.alternatives < 0) return;
  const int32_t token = params.drawn[blockIdx.x];
  const double log_sum = params.log_sums[blockIdx.x];
  DrawnLogprobs& out = params.out[blockIdx.x];
  bool is_changed = false;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); params.changes != nullptr && i < draw.num_changes; i += 32) {
    if (params.changes[draw.first_change + i].token != token) continue;
    out.drawn = detail::logprob_of(params.before[draw.first_change + i], log_sum);
    is_changed = true;
  }
  if (__any_sync(0xffffffffu, is_changed) || threadIdx.x != 0) return;
  out.drawn = detail::logprob_of(params.logits[static_cast<int64_t>(blockIdx.x) * params.vocabulary + token], log_sum);
}

}  // namespace kvant::ops::cuda
