#pragma once

#include <cstdint>
#include <span>

#include <vector_types.h>

#include "attn/cuda/common/kernel_image.h"
#include "kvant/attn/attention.h"

namespace kvant::attn::cuda {

/// Rows of one plane (K or V) of a page, in bytes; filled from KvLayout alone. A page is far below 2 GiB.
struct PlaneStrides {
  int32_t data;        ///< First byte of (head 0, token 0).
  int32_t data_head;   ///< Between heads.
  int32_t data_token;  ///< Between tokens.
  int32_t scale;       ///< First byte of the scale plane (lane order).
  int32_t scale_head;  ///< Between heads.
  int32_t scale_tile;  ///< Between tiles of 16 tokens.
};

struct PoolParams {
  const uint8_t* pages;
  uint32_t page_stride;
  uint32_t num_pages;
  PlaneStrides k, v;
};

/// Requests that a warp looks at, a lane each; more are another image.
inline constexpr int32_t kFewRequests = 32;

/// The kernels of an instance.
enum class DecodeVariant : uint8_t {
  kFew,    ///< For up to kFewRequests in a launch.
  kMany,   ///< For more; alike but for the function.
  kTeams,  ///< The same with a multiprocessor's blocks as the teams of one.
};

/// Largest grid.
inline constexpr int32_t kMaxDecodeBlocks = 4096;

/// Everything a launch needs. Trivially copyable.
struct DecodeParams {
  const void* q;              // [num_tokens, num_q_heads, head_dim_k]
  void* out;                  // [num_tokens, num_q_heads, head_dim_v]
  float* lse;                 // [num_tokens, num_q_heads] or null
  const int32_t* q_offsets;   // [num_requests + 1]
  const int32_t* kv_lens;     // [num_requests]
  const int32_t* page_table;  // [num_requests, page_table_stride]
  int64_t page_table_stride;
  const float* sinks;        // [num_q_heads] or null
  const uint32_t* mask;      // [num_tokens, mask_row_words] or null
  const int32_t* positions;  // [num_tokens] or null
  const float* mu;           // [num_kv_heads, head_dim_k] or null
  const float* z;            // [num_kv_heads, head_dim_k] or null: with it Q is balanced and rotated
  const float* k_scales;     // [scale_count] or null
  const float* v_scales;     // [scale_count] or null
  PoolParams base, exact;
  float* partial_out;     // [num_blocks, 2, kRows, head_dim_v]
  float2* partial_state;  // [num_blocks, 2, kRows] running maximum and sum
  uint32_t* counters;     // [kMaxDecodeBlocks], zero between launches
  int32_t mask_row_words;
  int32_t num_requests;
  int32_t num_tokens;
  int32_t num_kv_heads;
  int32_t group;        // query heads per KV head
  int32_t page_shift;   // log2(page size)
  int32_t scale_count;  // 1 or num_kv_heads
  int32_t window;       // 0 = none
  int32_t cp_rank, cp_size, cp_interleave;
  float softmax_scale;
  float soft_cap;
  DType q_dtype, out_dtype;
  DraftMask draft_mask;
};

/// A launch is image.function with one argument, DecodeParams, and image.shared_bytes +
/// decode_prefix_bytes(num_requests) for each team of shared memory, on any grid: as many blocks as the device holds at
/// once is fastest.
constexpr int32_t decode_prefix_bytes(int32_t max_requests) { return 4 * (max_requests + 1); }

struct DecodeInstance {
  KvFormat format;    ///< Of K and V.
  int32_t head_dim;   ///< Of K and V.
  int32_t row_tiles;  ///< Eight query rows each.
  bool exact_pages;
  bool tile_pages;  ///< For pages of 16 tokens with rows of a head side by side, and no soft cap; stands before others.
  KernelImage (*image)(DecodeVariant variant);  ///< Without a function where teams are not built.
};

/// Written by kernels.cmake.
std::span<const DecodeInstance> decode_splitkv_instances();

}  // namespace kvant::attn::cuda
