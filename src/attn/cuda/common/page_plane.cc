#include "attn/cuda/common/page_plane.h"

namespace kvant::attn::cuda {
namespace {

/// `data_of(head, token)` and `scale_of(head, token, block)` are offsets of `layout`.
template <class DataOf, class ScaleOf>
PagePlane make_plane(const KvLayout& layout, KvFormat format, int32_t head_dim, const DataOf& data_of,
                     const ScaleOf& scale_of) {
  PagePlane plane{};
  const auto u32 = [](int64_t value) { return static_cast<uint32_t>(value); };
  plane.format = format;
  plane.code_order = layout.code_order;
  plane.data = u32(data_of(0, 0));
  plane.data_head = u32(data_of(1, 0) - data_of(0, 0));
  plane.data_token = u32(data_of(0, 1) - data_of(0, 0));
  plane.data_unit = u32(KvLayout::data_row_bytes(format, kUnit));
  plane.group_blocks = plane.group_reciprocal = 1;
  if (info(format).scale_block == 0) return plane;

  const int64_t first = scale_of(0, 0, 0);
  plane.scale = u32(first);
  plane.scale_head = u32(scale_of(1, 0, 0) - first);
  for (int32_t bit = 0; bit < 5; ++bit) plane.scale_token[bit] = u32(scale_of(0, 1 << bit, 0) - first);
  const int32_t num_blocks = head_dim / info(format).scale_block;
  const int64_t step = num_blocks > 1 ? scale_of(0, 0, 1) - first : 1;
  int32_t group = 1;
  while (group < num_blocks && scale_of(0, 0, group) - first == group * step) ++group;
  plane.scale_block = u32(step);
  plane.scale_group = group < num_blocks ? u32(scale_of(0, 0, group) - first) : 0;
  plane.group_blocks = u32(group);
  plane.group_reciprocal = small_reciprocal(plane.group_blocks);
  return plane;
}

}  // namespace

PagePlane make_k_plane(const KvLayout& layout) {
  return make_plane(
      layout, layout.k_format, layout.head_dim_k,
      [&](int32_t head, int32_t token) { return layout.k_row(head, token); },
      [&](int32_t head, int32_t token, int32_t block) { return layout.k_scale(head, token, block); });
}

PagePlane make_v_plane(const KvLayout& layout) {
  return make_plane(
      layout, layout.v_format, layout.head_dim_v,
      [&](int32_t head, int32_t token) { return layout.v_row(head, token); },
      [&](int32_t head, int32_t token, int32_t block) { return layout.v_scale(head, token, block); });
}

PagePool make_page_pool(const KvLayout& layout, const KvPool& pool) {
  return {.pages = reinterpret_cast<uint8_t*>(pool.data),
          .num_pages = pool.num_pages,
          .page_stride = pool.page_stride,
          .plane = {make_k_plane(layout), make_v_plane(layout)}};
}

UnitGrid make_unit_grid(int64_t num_rows, int32_t head_dim, int32_t elements) {
  const auto row_units = static_cast<uint32_t>(head_dim / elements);
  return {.num_rows = num_rows,
          .row_units = row_units,
          .rows_per_warp = 32 / row_units,
          .row_reciprocal = small_reciprocal(row_units)};
}

}  // namespace kvant::attn::cuda
