#pragma once

#include <cstdint>

#include <vector_types.h>

#include "kvant/attn/attention.h"

namespace kvant::attn::cuda {

/// Query rows of one item of shared pages, keys of one of its tiles, and most parts that an item is cut into.
inline constexpr int32_t kSharedItemRows = 128;
inline constexpr int32_t kSharedTileKeys = 64;
inline constexpr int32_t kMaxSharedParts = 8;

/// Where rows of requests that share pages wait for each other, and where they go.
struct SharedRows {
  const SharedRun* runs;     // [num_requests + 1], see AttnArgs
  const int32_t* q_offsets;  // [num_requests + 1]
  float* part_out;           // [kMaxSharedParts, part_stride rows, head_dim_v] sums over parts of the shared pages
  float2* part_state;        // [kMaxSharedParts, part_stride] running maximum and sum
  float* own_out;            // [num_tokens, num_q_heads, head_dim_v] of the request's own pages, normalised
  float* own_lse;            // [num_tokens, num_q_heads]
  void* out;                 // [num_tokens, num_q_heads, head_dim_v] of out_dtype
  float* lse;                // [num_tokens, num_q_heads] or null
  const float* sinks;        // [num_q_heads] or null
  uint32_t* counters;        // [num_requests, num_kv_heads], zero between launches
  int64_t part_stride;       // tokens by query heads
  int32_t num_requests;
  int32_t num_kv_heads;
  int32_t group;  // query heads per KV head
  int32_t page_shift;
  int32_t head_dim;  // of V
  DType out_dtype;
};

}  // namespace kvant::attn::cuda
