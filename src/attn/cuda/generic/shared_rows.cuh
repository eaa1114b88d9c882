#pragma once

// Rows of requests that share pages: parts of the shared pages and the request's own pages are different items. Who
// works on the latter merges them all.

#include <cstdint>

#include "attn/cuda/common/attention_math.cuh"
#include "attn/cuda/common/ptx.cuh"
#include "attn/cuda/generic/shared_rows.h"

namespace kvant::attn::cuda {

namespace detail {
/// Items of a team whose rows are to be merged with those of shared pages.
struct Later {
  static constexpr int32_t kMost = 16;
  int32_t count;
  int2 items[kMost];  ///< Request and KV head.
};
}  // namespace detail

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
/// Tiles of all parts but the last, where a part is to have `part_tiles`.
__device__ __forceinline__ int32_t shared_part_size(int32_t tiles, int32_t part_tiles) {
  return max(part_tiles, (tiles + kMaxSharedParts - 1) / kMaxSharedParts);
}
/// Parts that so many tiles are cut into; none is empty.
__device__ __forceinline__ int32_t shared_parts(int32_t tiles, int32_t part_tiles) {
  const int32_t size = shared_part_size(tiles, part_tiles);
  return (tiles + size - 1) / size;
}

__device__ __forceinline__ uint32_t* shared_counter(const SharedRows& p, int32_t request, int32_t head) {
  return p.counters + request * p.num_kv_heads + head;
}
/// Waits until all parts of a request's rows of a KV head lie in memory, by one thread, and leaves the counter as it
/// was at first. Blocks that write parts wait for nobody and come first in the grid, so that they are at work or have
/// ended.
__device__ __forceinline__ void wait_for_parts(const SharedRows& p, int32_t request, int32_t head, int32_t part_tiles) {
  const RowsInRun rows = rows_in_run(p, request);
  const int32_t items = 1 + rows.last / kSharedItemRows - rows.first / kSharedItemRows;
  const int32_t parts = items * shared_parts(shared_tiles(p, p.runs[1 + request]), part_tiles);
  uint32_t* counter = shared_counter(p, request, head);
  while (load_acquire(counter) != static_cast<uint32_t>(parts)) __nanosleep(100);
  *counter = 0;
}

/// Merges the rows of a request of one KV head, parts in order and then the request's own pages, and writes them; by
/// whole warps, a thread four channels. Whoever does this, the bits are the same: products are rounded or fused by
/// name.
__device__ __forceinline__ void merge_shared_rows(const SharedRows& p, int32_t request, int32_t head,
                                                  int32_t part_tiles, int32_t thread, int32_t num_threads) {
  const int32_t parts = shared_parts(shared_tiles(p, p.runs[1 + request]), part_tiles);
  const int32_t q_begin = p.q_offsets[request];
  const int32_t fours = p.head_dim / 4;
  const int32_t places = (p.q_offsets[request + 1] - q_begin) * p.group * fours;
#pragma unroll 1
  for (int32_t i = thread; i < places; i += num_threads) {
    const int32_t row = i / fours, channel = i % fours * 4;
    const int32_t index = (q_begin + row / p.group) * p.num_kv_heads * p.group + head * p.group + row % p.group;
    const int64_t place = static_cast<int64_t>(index) * p.head_dim + channel;
    float2 state[kMaxSharedParts];
    float4 value[kMaxSharedParts];
#pragma unroll
    for (int k = 0; k < kMaxSharedParts; ++k) {
      state[k] = make_float2(-INFINITY, 0.0f);
      value[k] = make_float4(0, 0, 0, 0);
      if (k >= parts) continue;
      state[k] = __ldcg(p.part_state + k * p.part_stride + index);
      value[k] = __ldcg(reinterpret_cast<const float4*>(p.part_out + k * p.part_stride * p.head_dim + place));
    }
    const float4 own = __ldcg(reinterpret_cast<const float4*>(p.own_out + place));
    const float own_top = __fmul_rn(__ldcg(p.own_lse + index), kLog2OfE);
    float top = own_top;
#pragma unroll
    for (int k = 0; k < kMaxSharedParts; ++k) top = fmaxf(top, state[k].x);
    float sum = 0.0f;
    float4 all = make_float4(0, 0, 0, 0);
    const auto add = [&](float factor, const float4& v) {
      all.x = fmaf(factor, v.x, all.x), all.y = fmaf(factor, v.y, all.y);
      all.z = fmaf(factor, v.z, all.z), all.w = fmaf(factor, v.w, all.w);
    };
#pragma unroll
    for (int k = 0; k < kMaxSharedParts; ++k) {
      if (k >= parts) continue;
      const float factor = exp2_approx(state[k].x - top);  // Every row sees the shared pages, so that top is a number.
      sum = fmaf(factor, state[k].y, sum);
      add(factor, value[k]);
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
    store_two(p.out, p.out_dtype, place, all.x * inverse, all.y * inverse);
    store_two(p.out, p.out_dtype, place + 2, all.z * inverse, all.w * inverse);
    if (channel == 0 && p.lse != nullptr) p.lse[index] = (top + log2f(sum)) * kLnOf2;
  }
}

/// The same out of line.
inline __device__ __noinline__ void merge_shared_rows_apart(const SharedRows& p, int32_t request, int32_t head,
                                                            int32_t part_tiles, int32_t thread, int32_t num_threads) {
  merge_shared_rows(p, request, head, part_tiles, thread, num_threads);
}

}  // namespace kvant::attn::cuda
