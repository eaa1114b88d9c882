#pragma once

#include <cstdint>

#include "kvant/attn/attention.h"

namespace kvant::attn::cuda {

/// Query rows of one item of shared pages.
inline constexpr int32_t kSharedItemRows = 128;

/// Where rows of requests that share pages wait for each other, normalised: part 0 is that of the shared pages, part 1
/// that of the request's own. And where they go.
struct SharedRows {
  const SharedRun* runs;     // [num_requests + 1], see AttnArgs
  const int32_t* q_offsets;  // [num_requests + 1]
  float* part_out[2];        // [num_tokens, num_q_heads, head_dim_v]
  float* part_lse[2];        // [num_tokens, num_q_heads]
  void* out;                 // [num_tokens, num_q_heads, head_dim_v] of out_dtype
  float* lse;                // [num_tokens, num_q_heads] or null
  const float* sinks;        // [num_q_heads] or null
  uint32_t* counters;        // [num_requests, num_kv_heads], zero between launches
  int32_t num_kv_heads;
  int32_t group;  // query heads per KV head
  DType out_dtype;
};

}  // namespace kvant::attn::cuda
