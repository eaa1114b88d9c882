#pragma once

#include <cstdint>
#include <span>

#include <vector_types.h>

#include "attn/cuda/common/kernel_image.h"
#include "attn/cuda/common/page_plane.h"
#include "kvant/attn/attention.h"

namespace kvant::attn::cuda {

/// Largest grid: with two counters more, what `prepare` clears.
inline constexpr int32_t kMaxPrefillBlocks = 4000;

/// Everything a launch needs. Trivially copyable.
struct PrefillParams {
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
  PagePool base, exact;
  float* partial_out;     // [num_blocks, 2, kRows, padded head_dim_v]
  float2* partial_state;  // [num_blocks, 2, kRows] running maximum and sum
  uint32_t* counters;     // [num_blocks + 2], zero between launches
  int32_t mask_row_words;
  int32_t num_requests;
  int32_t num_kv_heads;
  int32_t group;  // query heads per KV head
  int32_t head_dim_k, head_dim_v;
  int32_t page_shift;   // log2(page size)
  int32_t scale_count;  // 1 or num_kv_heads
  int32_t window;       // 0 = none
  int32_t cp_rank, cp_size, cp_interleave;
  float softmax_scale;
  float soft_cap;
  DType q_dtype, out_dtype;
  DraftMask draft_mask;
  bool exact_pages;      // entries may name the exact pool
  bool batch_invariant;  // no item is cut
};

/// How a kernel's tiles come into shared memory.
enum class TileSource : uint8_t {
  kBf16,       ///< bf16 rows, copied.
  kF16,        ///< f16 rows, copied.
  kQuantised,  ///< Any other format, K and V each in its own, expanded to f16; exact pages too.
};

/// A launch is image.function with one argument, PrefillParams, and image.shared_bytes of shared memory, on any grid:
/// as many blocks as the device holds at once is fastest.
struct PrefillInstance {
  TileSource source;
  int32_t head_dim_k, head_dim_v;  ///< Largest; smaller rows are padded with zeros.
  int32_t rows;                    ///< Query rows of an item.
  int32_t compute_capability;      ///< The only one that it has an image for; 0 = every family of the build.
  KernelImage (*image)();
};

/// Written by kernels.cmake.
std::span<const PrefillInstance> prefill_flash_instances();

}  // namespace kvant::attn::cuda
