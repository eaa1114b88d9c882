#pragma once

// Rows of requests that share pages: parts of the shared pages and the request's own pages are different items, and the
// last to come merges them all.

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

__device__ __forceinline__ int32_t shared_tiles(const SharedRows& p, const SharedRun& run) {
  return ((run.num_pages << p.page_shift) + kSharedTileKeys - 1) / kSharedTileKeys;
}
/// Parts that so many tiles are cut into where a part is to have `part_tiles`.
__device__ __forceinline__ int32_t shared_parts(int32_t tiles, int32_t part_tiles) {
  return min((tiles + part_tiles - 1) / part_tiles, kMaxSharedParts);
}

/// Says that a part of a request's rows of a KV head lies in memory, by a thread that has seen it written. Whether
/// that was the last part.
__device__ __forceinline__ bool arrive_at_shared(const SharedRows& p, int32_t request, int32_t head,
                                                 int32_t part_tiles) {
  const RowsInRun rows = rows_in_run(p, request);
  const int32_t items = 1 + rows.last / kSharedItemRows - rows.first / kSharedItemRows;
  const int32_t parts = 1 + items * shared_parts(shared_tiles(p, p.runs[1 + request]), part_tiles);
  uint32_t* counter = p.counters + request * p.num_kv_heads + head;
  const bool is_last = add_release_acquire(counter, 1) + 1 == static_cast<uint32_t>(parts);
  if (is_last) *counter = 0;
  return is_last;
}

/// Merges and writes a request's rows of a KV head, parts in order and then its own pages: four channels a thread, of
/// kTogether rows at once, so that one waits for memory while the other does.
template <int kHeadDim, int kTogether>
__device__ __noinline__ void merge_shared_rows(const SharedRows& p, int32_t request, int32_t head, int32_t part_tiles,
                                               int32_t thread, int32_t num_threads) {
  constexpr int32_t kFours = kHeadDim / 4;
  const int32_t parts = shared_parts(shared_tiles(p, p.runs[1 + request]), part_tiles);
  const int32_t q_begin = p.q_offsets[request];
  const int32_t places = (p.q_offsets[request + 1] - q_begin) * p.group * kFours;
  for (int32_t first = thread; first < places; first += kTogether * num_threads) {
    int64_t index[kTogether];
    float2 state[kTogether][kMaxSharedParts];
    float4 value[kTogether][kMaxSharedParts], own[kTogether];
    float top[kTogether], own_top[kTogether];
    const int32_t channel = first % kFours * 4;  // Threads come in whole rows.
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      const int32_t row = min(first + m * num_threads, places - 1) / kFours;
      index[m] = (static_cast<int64_t>(q_begin) + row / p.group) * p.num_kv_heads * p.group + head * p.group +
                 row % p.group;
#pragma unroll
      for (int k = 0; k < kMaxSharedParts; ++k) {
        const int64_t at = k * p.part_stride + index[m];
        state[m][k] = k < parts ? __ldcg(p.part_state + at) : make_float2(-INFINITY, 0.0f);
        value[m][k] = k < parts ? __ldcg(reinterpret_cast<const float4*>(p.part_out + at * kHeadDim + channel))
                                : make_float4(0, 0, 0, 0);
      }
      own[m] = __ldcg(reinterpret_cast<const float4*>(p.own_out + index[m] * kHeadDim + channel));
      own_top[m] = __ldcg(p.own_lse + index[m]) * kLog2OfE;
    }
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      top[m] = own_top[m];
#pragma unroll
      for (int k = 0; k < kMaxSharedParts; ++k) top[m] = fmaxf(top[m], state[m][k].x);
      float sum = 0.0f;
      float4 all = make_float4(0, 0, 0, 0);
      const auto add = [&](float factor, const float4& v) {
        all.x = fmaf(factor, v.x, all.x), all.y = fmaf(factor, v.y, all.y);
        all.z = fmaf(factor, v.z, all.z), all.w = fmaf(factor, v.w, all.w);
      };
#pragma unroll
      for (int k = 0; k < kMaxSharedParts; ++k) {
        const float factor = exp2f(state[m][k].x - top[m]);  // Every row sees the shared pages: top is a number.
        sum = fmaf(factor, state[m][k].y, sum);
        add(factor, value[m][k]);
      }
      const float own_factor = exp2f(own_top[m] - top[m]);
      sum += own_factor;
      add(own_factor, own[m]);
      if (first + m * num_threads >= places) break;
      const auto q_head = static_cast<int32_t>(index[m] % (p.num_kv_heads * p.group));
      const float inverse = 1.0f / (p.sinks == nullptr ? sum : sum + exp2f(p.sinks[q_head] * kLog2OfE - top[m]));
      store_two(p.out, p.out_dtype, index[m] * kHeadDim + channel, all.x * inverse, all.y * inverse);
      store_two(p.out, p.out_dtype, index[m] * kHeadDim + channel + 2, all.z * inverse, all.w * inverse);
      if (channel == 0 && p.lse != nullptr) p.lse[index[m]] = (top[m] + log2f(sum)) * kLnOf2;
    }
  }
}

}  // namespace kvant::attn::cuda
