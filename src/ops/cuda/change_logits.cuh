#pragma once

// change_logits_kernel: bias and penalties of rows of logits, in place, a few blocks per row. A row's list names a
// token once, so no two threads meet. The logits as they were are kept beside the list: log probabilities are of them.
// The arithmetic is that of ops/logit_changes.cc to the last bit, hence no fused operations.

#include <cstdint>

#include "ops/cuda/launch.cuh"
#include "ops/draw.h"

namespace kvant::ops::cuda {

inline constexpr int kChangeThreads = 256;
inline constexpr int kChangeBlocks = 4;  // per row

struct ChangeParams {
  float* logits;               // [num_rows, vocabulary]
  const Draw* draws;           // by row_indices, or [num_rows] where that is null
  const int32_t* row_indices;  // [num_rows] or null
  const LogitChange* changes;  // of all rows
  float* before;               // like changes: the logits as they were
  int32_t vocabulary;
};

namespace detail {

__device__ __forceinline__ int32_t draw_index(const int32_t* row_indices, uint32_t row) {
  return row_indices == nullptr ? static_cast<int32_t>(row) : row_indices[row];
}

__device__ __forceinline__ float changed(float logit, const LogitChange& change, const Draw& draw) {
  logit = __fadd_rn(logit, change.bias);
  if (change.occurrences < 0) return logit;
  logit = logit > 0.0f ? __fdiv_rn(logit, draw.repetition_penalty) : __fmul_rn(logit, draw.repetition_penalty);
  if (change.occurrences == 0) return logit;
  const float often = __fmul_rn(draw.frequency_penalty, static_cast<float>(change.occurrences));
  return __fsub_rn(logit, __fadd_rn(draw.presence_penalty, often));
}

}  // namespace detail

__global__ void __launch_bounds__(kChangeThreads) change_logits_kernel(const __grid_constant__ ChangeParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const Draw draw = params.draws[detail::draw_index(params.row_indices, blockIdx.y)];
  float* logits = params.logits + static_cast<int64_t>(blockIdx.y) * params.vocabulary;
  for (auto i = static_cast<int32_t>(blockIdx.x * kChangeThreads + threadIdx.x); i < draw.num_changes;
       i += kChangeBlocks * kChangeThreads) {
    const LogitChange change = params.changes[draw.first_change + i];
    // Biases may name any token.
    if (change.token < 0 || change.token >= params.vocabulary) continue;
    const float before = logits[change.token];
    params.before[draw.first_change + i] = before;
    logits[change.token] = detail::changed(before, change, draw);
  }
}

}  // namespace kvant::ops::cuda
