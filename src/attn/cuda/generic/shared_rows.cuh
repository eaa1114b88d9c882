#pragma once

// Rows of requests that share pages: the shared pages' part and the request's own are different items, and the last to
// come merges both.

#include <cstdint>

#include "attn/cuda/common/attention_math.cuh"
#include "attn/cuda/common/ptx.cuh"
#include "attn/cuda/generic/shared_rows.h"

namespace kvant::attn::cuda {

/// The rows of a request among those of its run, of one KV head.
struct RowsInRun {
  int32_t first, last;  ///< Inclusive; last < first without rows.
};
__device__ __forceinline__ RowsInRun rows_in_run(const SharedRows& p, int32_t request) {
  const int32_t begin = p.q_offsets[p.runs[1 + request].first_request];
  return {(p.q_offsets[request] - begin) * p.group, (p.q_offsets[request + 1] - begin) * p.group - 1};
}

/// Says that one part of a request's rows of a KV head lies in memory, by a thread that has seen it written. Whether
/// that was the last part.
__device__ __forceinline__ bool arrive_at_shared(const SharedRows& p, int32_t request, int32_t head) {
  const RowsInRun rows = rows_in_run(p, request);
  const int32_t parts = 2 + rows.last / kSharedItemRows - rows.first / kSharedItemRows;
  uint32_t* counter = p.counters + request * p.num_kv_heads + head;
  const bool is_last = add_release_acquire(counter, 1) + 1 == static_cast<uint32_t>(parts);
  if (is_last) *counter = 0;
  return is_last;
}

/// Merges and writes a request's rows of a KV head, shared pages first, four channels a thread and round.
template <int kHeadDim>
__device__ __noinline__ void merge_shared_rows(const SharedRows& p, int32_t request, int32_t head, int32_t thread,
                                  int32_t num_threads) {
  constexpr int32_t kFours = kHeadDim / 4;
  const int32_t q_begin = p.q_offsets[request];
  const int32_t rows = (p.q_offsets[request + 1] - q_begin) * p.group;
#pragma unroll 2
  for (int32_t i = thread; i < rows * kFours; i += num_threads) {
    const int32_t row = i / kFours, channel = i % kFours * 4, q_head = head * p.group + row % p.group;
    const int64_t index = (static_cast<int64_t>(q_begin) + row / p.group) * p.num_kv_heads * p.group + q_head;
    const float4 a = __ldcg(reinterpret_cast<const float4*>(p.part_out[0] + index * kHeadDim + channel));
    const float4 b = __ldcg(reinterpret_cast<const float4*>(p.part_out[1] + index * kHeadDim + channel));
    const float a_lse = __ldcg(p.part_lse[0] + index), b_lse = __ldcg(p.part_lse[1] + index);
    const float top = fmaxf(a_lse, b_lse);  // Every row sees the shared pages.
    float a_weight = exp2f((a_lse - top) * kLog2OfE), b_weight = exp2f((b_lse - top) * kLog2OfE);
    const float sum = a_weight + b_weight;
    const float inverse = 1.0f / (p.sinks == nullptr ? sum : sum + exp2f((p.sinks[q_head] - top) * kLog2OfE));
    a_weight *= inverse, b_weight *= inverse;
    store_two(p.out, p.out_dtype, index * kHeadDim + channel, a_weight * a.x + b_weight * b.x,
              a_weight * a.y + b_weight * b.y);
    store_two(p.out, p.out_dtype, index * kHeadDim + channel + 2, a_weight * a.z + b_weight * b.z,
              a_weight * a.w + b_weight * b.w);
    if (channel == 0 && p.lse != nullptr) p.lse[index] = top + log2f(sum) * kLnOf2;
  }
}

}  // namespace kvant::attn::cuda
