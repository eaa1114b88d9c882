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

/// Four channels of a row of a part, and of what the request's own pages gave.
__device__ __forceinline__ float4 load_part(const SharedRows& p, int32_t part, int64_t place) {
  return __ldcg(reinterpret_cast<const float4*>(p.part_out + part * p.part_stride * p.head_dim + place));
}

/// Merges and writes four channels of a row, parts in order and then the request's own pages. Whoever does this, the
/// bits are the same: products are rounded or fused by name. state(k) and value(k) are part k's for k < parts.
template <class StateOf, class ValueOf>
__device__ __forceinline__ void merge_row(const SharedRows& p, int32_t index, int32_t channel, int32_t parts,
                                          float own_lse, const float4& own, const StateOf& state,
                                          const ValueOf& value) {
  const float own_top = __fmul_rn(own_lse, kLog2OfE);
  float top = own_top;
#pragma unroll
  for (int k = 0; k < kMaxSharedParts; ++k) top = fmaxf(top, k < parts ? state(k).x : -INFINITY);
  float sum = 0.0f;
  float4 all = make_float4(0, 0, 0, 0);
  const auto add = [&](float factor, const float4& v) {
    all.x = fmaf(factor, v.x, all.x), all.y = fmaf(factor, v.y, all.y);
    all.z = fmaf(factor, v.z, all.z), all.w = fmaf(factor, v.w, all.w);
  };
#pragma unroll
  for (int k = 0; k < kMaxSharedParts; ++k) {
    if (k >= parts) continue;
    const float factor = exp2_approx(state(k).x - top);  // Every row sees the shared pages, so that top is a number.
    sum = fmaf(factor, state(k).y, sum);
    add(factor, value(k));
  }
  const float own_factor = exp2_approx(own_top - top);
  sum += own_factor;
  add(own_factor, own);
  float total = sum;
  if (p.sinks != nullptr) {
    const int32_t q_head = index % (p.num_kv_heads * p.group);
    total += exp2f(__fmul_rn(p.sinks[q_head], kLog2OfE) - top);
  }
  const float inverse = __fdividef(1.0f, total);
  const int64_t place = static_cast<int64_t>(index) * p.head_dim + channel;
  store_two(p.out, p.out_dtype, place, all.x * inverse, all.y * inverse);
  store_two(p.out, p.out_dtype, place + 2, all.z * inverse, all.w * inverse);
  if (channel == 0 && p.lse != nullptr) p.lse[index] = (top + log2f(sum)) * kLnOf2;
}

/// The rows of a request of one KV head, by whole warps.
inline __device__ __noinline__ void merge_shared_rows(const SharedRows& p, int32_t request, int32_t head,
                                                      int32_t part_tiles, int32_t thread, int32_t num_threads) {
  const int32_t parts = shared_parts(shared_tiles(p, p.runs[1 + request]), part_tiles);
  const int32_t q_begin = p.q_offsets[request];
  const int32_t fours = p.head_dim / 4;
  const int32_t places = (p.q_offsets[request + 1] - q_begin) * p.group * fours;
  for (int32_t i = thread; i < places; i += num_threads) {
    const int32_t row = i / fours, channel = i % fours * 4;
    const int32_t index = (q_begin + row / p.group) * p.num_kv_heads * p.group + head * p.group + row % p.group;
    const int64_t place = static_cast<int64_t>(index) * p.head_dim + channel;
    float2 state[kMaxSharedParts];
    float4 value[kMaxSharedParts];
#pragma unroll
    for (int k = 0; k < kMaxSharedParts; ++k) {
      state[k] = k < parts ? __ldcg(p.part_state + k * p.part_stride + index) : make_float2(-INFINITY, 0.0f);
      value[k] = k < parts ? load_part(p, k, place) : make_float4(0, 0, 0, 0);
    }
    const float4 own = __ldcg(reinterpret_cast<const float4*>(p.own_out + place));
    merge_row(
        p, index, channel, parts, __ldcg(p.own_lse + index), own, [&](int k) { return state[k]; },
        [&](int k) { return value[k]; });
  }
}

/// Rows whose indices are listed, two at once by each of `num_warps` warps. Lane k reads the state of part k, and lane
/// kMaxSharedParts the own pages' LSE.
inline __device__ __noinline__ void merge_listed_rows(const SharedRows& p, const int32_t* listed, int32_t count,
                                                      int32_t parts, int32_t warp, int32_t num_warps) {
  constexpr int kTogether = 2;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  for (int32_t first = kTogether * warp; first < count; first += kTogether * num_warps) {
    for (int32_t channel = 4 * lane; channel < p.head_dim; channel += 128) {
      int32_t index[kTogether];
      float2 state[kTogether];
      float4 value[kTogether][kMaxSharedParts], own[kTogether];
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        index[m] = listed[min(first + m, count - 1)];
        const int64_t place = static_cast<int64_t>(index[m]) * p.head_dim + channel;
        state[m] = make_float2(0.0f, 0.0f);
        if (lane < parts) state[m] = __ldcg(p.part_state + lane * p.part_stride + index[m]);
        if (lane == kMaxSharedParts) state[m].x = __ldcg(p.own_lse + index[m]);
#pragma unroll
        for (int k = 0; k < kMaxSharedParts; ++k)
          value[m][k] = k < parts ? load_part(p, k, place) : make_float4(0, 0, 0, 0);
        own[m] = __ldcg(reinterpret_cast<const float4*>(p.own_out + place));
      }
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        if (first + m >= count) break;
        const float own_lse = __shfl_sync(0xffffffffu, state[m].x, kMaxSharedParts);
        merge_row(
            p, index[m], channel, parts, own_lse, own[m],
            [&](int k) {
              return make_float2(__shfl_sync(0xffffffffu, state[m].x, k), __shfl_sync(0xffffffffu, state[m].y, k));
            },
            [&](int k) { return value[m][k]; });
      }
    }
  }
}

}  // namespace kvant::attn::cuda
