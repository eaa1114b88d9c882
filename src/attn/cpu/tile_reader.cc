#include "attn/cpu/tile_reader.h"

#include <algorithm>

namespace kvant::attn::cpu {

TileReader::Plane TileReader::key_plane(const AttentionKernels& kernels, const KvLayout& layout) {
  KvLayout linear = layout;
  linear.scale_order = ScaleOrder::kLinear;
  return {.expand = kernels.expand_rows(layout.k_format, layout.code_order),
          .token_stride = layout.page_size > 1 ? layout.k_row(0, 1) - layout.k_row(0, 0) : 0,
          .head_stride = layout.num_kv_heads > 1 ? layout.k_row(1, 0) - layout.k_row(0, 0) : 0,
          .offset = layout.k_row(0, 0),
          .scale_token_stride = layout.page_size > 1 ? linear.k_scale(0, 1, 0) - linear.k_scale(0, 0, 0) : 0,
          .scale_head_stride = layout.num_kv_heads > 1 ? linear.k_scale(1, 0, 0) - linear.k_scale(0, 0, 0) : 0,
          .scale_offset = linear.k_scale(0, 0, 0),
          .row_bytes = static_cast<int32_t>(layout.k_row_bytes()),
          .scale_row_bytes = static_cast<int32_t>(layout.k_scale_row_bytes()),
          .head_dim = layout.head_dim_k,
          .scattered_scale = layout.scale_order == ScaleOrder::kLanes ? &KvLayout::k_scale : nullptr};
}

TileReader::Plane TileReader::value_plane(const AttentionKernels& kernels, const KvLayout& layout) {
  KvLayout linear = layout;
  linear.scale_order = ScaleOrder::kLinear;
  return {.expand = kernels.expand_rows(layout.v_format, layout.code_order),
          .token_stride = layout.page_size > 1 ? layout.v_row(0, 1) - layout.v_row(0, 0) : 0,
          .head_stride = layout.num_kv_heads > 1 ? layout.v_row(1, 0) - layout.v_row(0, 0) : 0,
          .offset = layout.v_row(0, 0),
          .scale_token_stride = layout.page_size > 1 ? linear.v_scale(0, 1, 0) - linear.v_scale(0, 0, 0) : 0,
          .scale_head_stride = layout.num_kv_heads > 1 ? linear.v_scale(1, 0, 0) - linear.v_scale(0, 0, 0) : 0,
          .scale_offset = linear.v_scale(0, 0, 0),
          .row_bytes = static_cast<int32_t>(layout.v_row_bytes()),
          .scale_row_bytes = static_cast<int32_t>(layout.v_scale_row_bytes()),
          .head_dim = layout.head_dim_v,
          .scattered_scale = layout.scale_order == ScaleOrder::kLinear ? nullptr : &KvLayout::v_scale};
}

TileReader::TileReader(const AttentionKernels& kernels, const KvCacheView& cache)
    : cache_(cache),
      base_keys_(key_plane(kernels, cache.layout)),
      base_values_(value_plane(kernels, cache.layout)),
      exact_keys_(key_plane(kernels, cache.layout.exact())),
      exact_values_(value_plane(kernels, cache.layout.exact())) {}

void TileReader::read_keys(const int32_t* pages, int32_t head, int32_t tile, int32_t first, int32_t last,
                           float* out) const {
  read(base_keys_, exact_keys_, cache_.scales.k_scale(head), pages, head, tile, first, last, out);
}

void TileReader::read_values(const int32_t* pages, int32_t head, int32_t tile, int32_t first, int32_t last,
                             float* out) const {
  read(base_values_, exact_values_, cache_.scales.v_scale(head), pages, head, tile, first, last, out);
}

void TileReader::read(const Plane& base, const Plane& exact, float g, const int32_t* pages, int32_t head, int32_t tile,
                      int32_t first, int32_t last, float* out) const {
  const int32_t page_size = cache_.layout.page_size;
  for (int32_t key = first; key < last;) {
    const int32_t entry = pages[key / page_size];
    const int32_t token = key % page_size;
    const int32_t count = std::min(page_size - token, last - key);
    const bool is_exact = is_exact_page(entry);
    const Plane& plane = is_exact ? exact : base;
    const KvPool& pool = is_exact ? cache_.exact : cache_.base;
    const auto* page = reinterpret_cast<const uint8_t*>(pool.data) + page_id(entry) * pool.page_stride;
    const EncodedRows rows{
        .data = page + plane.offset + head * plane.head_stride + token * plane.token_stride,
        .data_stride = plane.token_stride,
        .scales = page + plane.scale_offset + head * plane.scale_head_stride + token * plane.scale_token_stride,
        .scale_stride = plane.scale_token_stride,
        .g = is_exact ? 1.0f : g};
    float* to = out + static_cast<int64_t>(key - tile) * plane.head_dim;
    if (plane.scattered_scale != nullptr)
      read_scattered(plane, rows, page, head, token, count, to);
    else
      plane.expand(rows, count, plane.head_dim, to);
    key += count;
  }
}

void TileReader::read_scattered(const Plane& plane, EncodedRows rows, const uint8_t* page, int32_t head, int32_t token,
                                int32_t count, float* out) const {
  uint8_t scales[32];  // One row: at most 512 elements in blocks of 16.
  rows.scales = scales;
  for (int32_t i = 0; i < count; ++i) {
    for (int32_t block = 0; block < plane.scale_row_bytes; ++block)
      scales[block] = page[(cache_.layout.*plane.scattered_scale)(head, token + i, block)];
    plane.expand(rows, 1, plane.head_dim, out + static_cast<int64_t>(i) * plane.head_dim);
    rows.data += rows.data_stride;
  }
}

}  // namespace kvant::attn::cpu
