#pragma once

// draw_kernel: a token drawn from a row of logits by temperature, top-k, min-p and top-p, a block per row. Rows that
// want the most likely token have it from argmax_kernel and are left alone.
//
// Weights are fixed-point numbers, so that sums do not depend on the order of additions and a seed always gives the
// same token. What top-k and top-p keep is everything above a threshold: it is found by bisection on the bits of the
// logits, three candidates at a time, without sorting. Of logits equal to the threshold as many are kept as are needed;
// which ones is fixed, but not by token id.

#include <cstdint>

#include "ops/cuda/argmax.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/draw.h"
#include "ops/random_unit.h"

namespace kvant::ops::cuda {

inline constexpr int kDrawThreads = 1024;

struct DrawParams {
  const float* logits;         // [num_rows, vocabulary]
  const Draw* draws;           // by row_indices, or [num_rows] where that is null
  const int32_t* row_indices;  // [num_rows] or null
  int32_t* out;                // [num_rows]: the most likely token, replaced by the drawn one
  int32_t vocabulary;
};

namespace detail {

/// Keeps logits with a larger key, and `ties` of those with this one.
struct Threshold {
  uint32_t key;
  uint64_t ties;
};

inline constexpr float kWeightUnit = 0x1p40f;

/// Monotone in the logit; NaN is minus infinity.
__device__ __forceinline__ uint32_t key_of(float logit) { return static_cast<uint32_t>(argmax_key(logit, 0) >> 32); }

__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

/// Sums over the block, seen by every thread; for three numbers at once.
template <int kCount>
__device__ __forceinline__ void block_sums(uint64_t (&values)[kCount]) {
  __shared__ uint64_t parts[kDrawThreads / 32][kCount];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) values[i] += __shfl_xor_sync(0xffffffffu, values[i], distance);
    if (lane == 0) parts[warp][i] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = parts[lane][i];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) values[i] += __shfl_xor_sync(0xffffffffu, values[i], distance);
  }
  __syncthreads();
}
static_assert(kDrawThreads / 32 == 32, "a warp adds the parts of all warps");

/// The sum of all threads before this one.
__device__ __forceinline__ uint64_t sum_before(uint64_t value) {
  __shared__ uint64_t parts[kDrawThreads / 32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t upto = value;
#pragma unroll
  for (uint32_t distance = 1; distance < 32; distance *= 2) {
    const uint64_t before = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += before;
  }
  if (lane == 31) parts[warp] = upto;
  __syncthreads();
  uint64_t out = upto - value;
  for (uint32_t i = 0; i < warp; ++i) out += parts[i];
  __syncthreads();
  return out;
}

/// One row as a block sees it.
struct DrawRow {
  const float* logits;
  int32_t vocabulary;
  float largest;
  float per_temperature;
  float min_weight;

  /// Relative to the most likely token, in units of 2^-40; 0 = cannot be drawn.
  __device__ __forceinline__ uint64_t weight(float logit) const {
    const float weight = expf((logit - largest) * per_temperature);
    return weight >= min_weight ? __float2ull_rn(weight * kWeightUnit) : 0;  // False for NaN.
  }

  /// The largest key such that the measure of all logits with that key or a larger one reaches `target`; measure(i)
  /// maps a logit to an integer. The measure of all logits must reach the target.
  template <class Measure>
  __device__ Threshold find_threshold(const Measure& measure, uint64_t target) const {
    uint32_t low = 0, high = key_of(largest);
    uint64_t above = 0;  // the measure of keys beyond `high`
    while (low < high) {
      // Keys low + 1 to high are open: three of them, evenly spread and not below low + 1.
      const uint64_t open = high - low;
      uint32_t pivots[3];
#pragma unroll
      for (uint32_t i = 0; i < 3; ++i) pivots[i] = low + static_cast<uint32_t>((open * (i + 1) + 3) / 4);
      uint64_t sums[3] = {};
      for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocabulary; i += kDrawThreads) {
        const float logit = logits[i];
        const uint32_t key = key_of(logit);
        if (key < pivots[0]) continue;
        const uint64_t value = measure(logit);
        sums[0] += value;
        sums[1] += key >= pivots[1] ? value : 0;
        sums[2] += key >= pivots[2] ? value : 0;
      }
      block_sums(sums);
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (sums[i] >= target) {
          low = pivots[i];
        } else {
          high = pivots[i] - 1;
          above = sums[i];
          break;
        }
      }
    }
    const uint64_t one = measure(logit_of(low));
    return {low, one == 0 ? 0 : (target - above + one - 1) / one};
  }
};

/// What top-k and top-p keep.
__device__ __forceinline__ Threshold kept(const DrawRow& row, const Draw& draw) {
  Threshold out{0, ~uint64_t{0}};
  if (draw.top_k > 0 && draw.top_k < row.vocabulary)
    out = row.find_threshold([](float) -> uint64_t { return 1; }, static_cast<uint64_t>(draw.top_k));
  if (draw.top_p >= 1.0f) return out;
  uint64_t sum[2] = {};  // weights above the threshold, and how many lie on it
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.vocabulary; i += kDrawThreads) {
    const uint32_t key = key_of(row.logits[i]);
    if (key > out.key) sum[0] += row.weight(row.logits[i]);
    if (key == out.key) ++sum[1];
  }
  block_sums(sum);
  const uint64_t ties = sum[1] < out.ties ? sum[1] : out.ties;
  const uint64_t all = sum[0] + ties * row.weight(logit_of(out.key));
  const auto wanted = static_cast<uint64_t>(ceil(static_cast<double>(draw.top_p) * static_cast<double>(all)));
  const Threshold nucleus = row.find_threshold([&](float logit) { return row.weight(logit); }, wanted > 1 ? wanted : 1);
  if (nucleus.key == out.key && out.ties < nucleus.ties) return out;
  return nucleus;
}

}  // namespace detail

__global__ void __launch_bounds__(kDrawThreads) draw_kernel(const __grid_constant__ DrawParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const Draw draw =
      params.draws[params.row_indices == nullptr ? static_cast<int32_t>(blockIdx.x) : params.row_indices[blockIdx.x]];
  if (draw.temperature == 0.0f || draw.top_k == 1) return;
  const float* logits = params.logits + static_cast<int64_t>(blockIdx.x) * params.vocabulary;
  const float largest = logits[params.out[blockIdx.x]];
  if (!isfinite(largest)) return;
  const detail::DrawRow row{.logits = logits,
                            .vocabulary = params.vocabulary,
                            .largest = largest,
                            .per_temperature = 1.0f / draw.temperature,
                            .min_weight = draw.min_p};
  const detail::Threshold threshold = detail::kept(row, draw);

  uint64_t on_threshold = 0;
  const auto first = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = first; i < params.vocabulary; i += kDrawThreads)
    on_threshold += detail::key_of(logits[i]) == threshold.key ? 1 : 0;
  const uint64_t ties_before = detail::sum_before(on_threshold);
  // Calls take(index, weight) for every logit of this thread that is kept, until it returns false.
  const auto walk = [&](const auto& take) {
    uint64_t ties = ties_before;
    for (int32_t i = first; i < params.vocabulary; i += kDrawThreads) {
      const uint32_t key = detail::key_of(logits[i]);
      if (key < threshold.key || (key == threshold.key && ties++ >= threshold.ties)) continue;
      if (!take(i, row.weight(logits[i]))) return;
    }
  };
  uint64_t own = 0;
  walk([&](int32_t, uint64_t weight) {
    own += weight;
    return true;
  });
  const uint64_t before = detail::sum_before(own);
  uint64_t sum[1] = {own};
  detail::block_sums(sum);
  const auto place = static_cast<uint64_t>(random_unit(draw.seed, draw.step) * static_cast<double>(sum[0]));
  const uint64_t drawn = place < sum[0] ? place : sum[0] - 1;
  if (drawn < before || drawn >= before + own) return;
  uint64_t left = drawn - before;
  walk([&](int32_t index, uint64_t weight) {
    if (left >= weight) {
      left -= weight;
      return true;
    }
    params.out[blockIdx.x] = index;
    return false;
  });
}

}  // namespace kvant::ops::cuda
