#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/attn/kv_layout.h"

namespace kvant::attn {

// ---- Page-table entries and slots -------------------------------------------------------------------------------
// A table entry names a page and its pool: negative = no page (never read), bit 30 = exact pool, rest = page id.
// A slot names one token of one page: page id * page size + token, bit 62 = exact pool, negative = do not write.

inline constexpr int32_t kExactPageBit = 1 << 30;
inline constexpr int32_t kNoPage = -1;
inline constexpr int64_t kExactSlotBit = int64_t{1} << 62;
inline constexpr int64_t kSkipSlot = -1;

constexpr bool is_exact_page(int32_t entry) { return entry >= 0 && (entry & kExactPageBit) != 0; }
constexpr int32_t page_id(int32_t entry) { return entry & ~kExactPageBit; }
constexpr int64_t slot_of(int32_t entry, int32_t page_size, int32_t token) {
  const int64_t slot = static_cast<int64_t>(page_id(entry)) * page_size + token;
  return is_exact_page(entry) ? slot | kExactSlotBit : slot;
}

// ---- One layer's cache ------------------------------------------------------------------------------------------

/// Pages of one layer in one pool. Page i starts at data + i * page_stride. Never owns.
struct KvPool {
  std::byte* data = nullptr;
  int64_t num_pages = 0;
  int64_t page_stride = 0;  ///< Bytes, at least the layout's page_bytes().
};

/// Global dequantisation scales g: x ~= code value * block scale * g. Null means 1; a 16-bit cache has none.
struct KvScales {
  const float* k = nullptr;  ///< [count]
  const float* v = nullptr;  ///< [count]
  int32_t count = 1;         ///< 1 = per tensor, num_kv_heads = per head.

  constexpr float k_scale(int32_t head) const { return k == nullptr ? 1.0f : k[count == 1 ? 0 : head]; }
  constexpr float v_scale(int32_t head) const { return v == nullptr ? 1.0f : v[count == 1 ? 0 : head]; }
};

/// Static parameters of conditioned keys: K' = H((K - mu) * zi), Q' = H(Q * z), Q.K = Q'.K' + Q.mu.
/// All arrays [num_kv_heads, head_dim_k], fp32. Both pools hold conditioned keys.
struct KeyConditioner {
  KeyConditioning kind = KeyConditioning::kNone;
  const float* mu = nullptr;  ///< Needed by kMean and kFull.
  const float* z = nullptr;   ///< Needed by kFull; 1 otherwise.
  const float* zi = nullptr;  ///< fl(1 / z), stored, never recomputed.
};

/// Where one layer's pages are and how they are encoded. Pointers are in the memory of the device that runs the call.
struct KvCacheView {
  KvLayout layout;
  KvPool base;   ///< Pages in `layout`.
  KvPool exact;  ///< Pages in `layout.exact()`; empty when the cache has no exact edges.
  KvScales scales;
  KeyConditioner conditioner;
};

}  // namespace kvant::attn
