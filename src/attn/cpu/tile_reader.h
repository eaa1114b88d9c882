#pragma once

#include <cstdint>

#include "attn/cpu/attention_kernels.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn::cpu {

/// Reads keys or values of one request page by page, each page from the pool that its table entry names.
class TileReader {
 public:
  TileReader(const AttentionKernels& kernels, const KvCacheView& cache);

  /// Writes rows [first, last) of the request to out[row - tile]: [kKeyTile, head_dim_k].
  void read_keys(const int32_t* pages, int32_t head, int32_t tile, int32_t first, int32_t last, float* out) const;
  void read_values(const int32_t* pages, int32_t head, int32_t tile, int32_t first, int32_t last, float* out) const;

 private:
  /// One plane (K or V) of one pool.
  struct Plane {
    ExpandRows expand = nullptr;
    int64_t token_stride = 0, head_stride = 0, offset = 0;
    int64_t scale_token_stride = 0, scale_head_stride = 0, scale_offset = 0;
    int32_t row_bytes = 0, scale_row_bytes = 0, head_dim = 0;
    /// Address of a scale whose order is not linear.
    int64_t (KvLayout::*scattered_scale)(int32_t head, int32_t token, int32_t block) const = nullptr;
  };
  static Plane key_plane(const AttentionKernels& kernels, const KvLayout& layout);
  static Plane value_plane(const AttentionKernels& kernels, const KvLayout& layout);

  void read(const Plane& base, const Plane& exact, float g, const int32_t* pages, int32_t head, int32_t tile,
            int32_t first, int32_t last, float* out) const;
  void read_scattered(const Plane& plane, EncodedRows rows, const uint8_t* page, int32_t head, int32_t token,
                      int32_t count, float* out) const;

  const KvCacheView& cache_;
  Plane base_keys_, base_values_, exact_keys_, exact_values_;
};

}  // namespace kvant::attn::cpu
