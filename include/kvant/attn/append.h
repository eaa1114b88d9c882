#pragma once

#include <cstdint>
#include <span>

#include "kvant/attn/head_preparation.h"
#include "kvant/attn/kv_cache.h"
#include "kvant/core/dtype.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant::attn {

/// Quantise-and-write of new keys and values. Keys are given after RoPE, unless `preparation` does it; conditioning is
/// applied here.
struct AppendArgs {
  KvCacheView cache;
  ScalePolicy policy = ScalePolicy::kAmax;
  const void* k = nullptr;  ///< [num_tokens, num_kv_heads, head_dim_k] of dtype
  const void* v = nullptr;  ///< [num_tokens, num_kv_heads, head_dim_v] of dtype
  DType dtype = DType::kF32;
  int64_t k_token_stride = 0;  ///< Elements between tokens; 0 = dense.
  int64_t v_token_stride = 0;
  const int64_t* slots = nullptr;  ///< [num_tokens]; negative = skip.
  int64_t num_tokens = 0;
  HeadPreparation preparation{};
};

/// Writes every token to its slot. On the CPU a slot outside its pool is kInvalidArgument and nothing is written; on
/// CUDA such a slot is skipped. No allocation, no synchronisation; slots must be distinct. Both give the same bytes,
/// prepared heads included (but for payloads of NaN).
///
/// On CUDA all pointers are in device memory and a call is one launch that can be captured: slots and values may change
/// between replays. Global scales are not looked at there; they must be from 2^-100 to 2^100. Any alignment works;
/// addresses, token and page strides that are multiples of 16 bytes are fastest.
Status append(const AppendArgs& args, Stream stream);

/// A whole page that leaves the exact tail.
struct PageAge {
  int32_t exact_page = 0;  ///< Page id in the exact pool (read).
  int32_t base_page = 0;   ///< Page id in the base pool (written).
};

struct AgeArgs {
  KvCacheView cache;
  ScalePolicy policy = ScalePolicy::kSearch;
  const PageAge* ages = nullptr;  ///< [num_ages], in the device's memory
  int64_t num_ages = 0;
};

/// Re-encodes exact (f16) pages into base pages, all tokens of the page. No conditioning: both pools hold K'. On the
/// CPU a page outside its pool is kInvalidArgument; on CUDA its entry is skipped, so that a captured call can be
/// padded.
Status age_pages(const AgeArgs& args, Stream stream);

/// Copies pages between two layouts that differ only in orders (never in formats or sizes): lossless, both ways.
/// Page ids are the same on both sides.
Status convert_pages(const KvLayout& from_layout, KvPool from, const KvLayout& to_layout, KvPool to, Stream stream);

/// Expands cached rows to fp32 for tests, debugging and hosts: K' and V as stored, times g.
/// k_out [num_slots, num_kv_heads, head_dim_k], v_out [num_slots, num_kv_heads, head_dim_v]. On CUDA the slots are in
/// device memory too. A slot that must not be read, negative or on CUDA outside its pool, gives zeros.
Status dequantise(const KvCacheView& cache, std::span<const int64_t> slots, float* k_out, float* v_out, Stream stream);

}  // namespace kvant::attn
