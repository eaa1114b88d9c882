#include "attn/cpu/tile_reader.h"

#include <algorithm>

namespace kvant::attn::cpu {

/// What KvLayout says of one of the planes.
struct TileReader::PlaneSource {
  KvFormat format;
  int32_t head_dim;
  int64_t row_bytes, scale_row_bytes;
  int64_t (KvLayout::*row)(int32_t head, int32_t token) const;
  int64_t (KvLayout::*scale)(int32_t head, int32_t token, int32_t block) const;
  bool scattered_scales;  ///< Not at equal distances.
};

TileReader::Plane TileReader::make_plane(const AttentionKernels& kernels, const KvLayout& layout,
                                         const PlaneSource& source) {
  KvLayout linear = layout;
  linear.scale_order = ScaleOrder::kLinear;
  const auto row = [&](int32_t head, int32_t token) { return (layout.*source.row)(head, token); };
  const auto scale = [&](int32_t head, int32_t token) { return (linear.*source.scale)(head, token, 0); };
  const bool has_tokens = layout.page_size > 1, has_heads = layout.num_kv_heads > 1;
  return {
      .expand = kernels.expand_rows(source.format, layout.code_order),
      .format = source.format,
      .in_place = !source.scattered_scales && kernels.reads_in_place(source.format, layout.code_order, source.head_dim),
      .token_stride = has_tokens ? row(0, 1) - row(0, 0) : 0,
      .head_stride = has_heads ? row(1, 0) - row(0, 0) : 0,
      .offset = row(0, 0),
      .scale_token_stride = has_tokens ? scale(0, 1) - scale(0, 0) : 0,
      .scale_head_stride = has_heads ? scale(1, 0) - scale(0, 0) : 0,
      .scale_offset = scale(0, 0),
      .row_bytes = static_cast<int32_t>(source.row_bytes),
      .scale_row_bytes = static_cast<int32_t>(source.scale_row_bytes),
      .head_dim = source.head_dim,
      .scattered_scale = source.scattered_scales ? source.scale : nullptr};
}

TileReader::Plane TileReader::key_plane(const AttentionKernels& kernels, const KvLayout& layout) {
  return make_plane(kernels, layout,
                    {.format = layout.k_format,
                     .head_dim = layout.head_dim_k,
                     .row_bytes = layout.k_row_bytes(),
                     .scale_row_bytes = layout.k_scale_row_bytes(),
                     .row = &KvLayout::k_row,
                     .scale = &KvLayout::k_scale,
                     .scattered_scales = layout.scale_order == ScaleOrder::kLanes});
}

TileReader::Plane TileReader::value_plane(const AttentionKernels& kernels, const KvLayout& layout) {
  return make_plane(kernels, layout,
                    {.format = layout.v_format,
                     .head_dim = layout.head_dim_v,
                     .row_bytes = layout.v_row_bytes(),
                     .scale_row_bytes = layout.v_scale_row_bytes(),
                     .row = &KvLayout::v_row,
                     .scale = &KvLayout::v_scale,
                     .scattered_scales = layout.scale_order != ScaleOrder::kLinear});
}

TileReader::TileReader(const AttentionKernels& kernels, const KvCacheView& cache)
    : cache_(cache),
      keys_{.base = key_plane(kernels, cache.layout), .exact = key_plane(kernels, cache.layout.exact())},
      values_{.base = value_plane(kernels, cache.layout), .exact = value_plane(kernels, cache.layout.exact())} {}

void TileReader::read_keys(const Rows& keys, int32_t tile, float* out, const Rows& ahead) const {
  read(keys_, keys, tile, out, ahead);
}

void TileReader::read_values(const Rows& values, int32_t tile, float* out, const Rows& ahead) const {
  read(values_, values, tile, out, ahead);
}

TileReader::Step TileReader::step(const Planes& planes, const int32_t* pages, int32_t begin, int32_t first,
                                  int32_t last, int32_t next_last, bool all_heads) const {
  Step step;
  step.of_keys = &planes == &keys_;
  step.pages = pages;
  step.begin = begin;
  step.first = first;
  step.last = last;
  const Run run = run_at(planes, {.pages = pages, .first = first, .last = last}, first);
  step.in_place = run.plane.in_place && run.count == last - first && cache_.layout.page_size % 4 == 0;
  if (!step.in_place) return step;
  step.format = run.plane.format;
  step.scaled = &run.plane == &planes.base;
  step.rows = run.rows;
  step.rows.data -= (first - begin) * run.rows.data_stride;
  step.rows.scales -= (first - begin) * run.rows.scale_stride;
  step.head_stride = run.plane.head_stride;
  step.scale_head_stride = run.plane.scale_head_stride;
  if (next_last <= last) return step;
  const Run next = run_at(planes, {.pages = pages, .first = last, .last = next_last}, last);
  if (next.count != run.count) return step;
  const int64_t row_bytes = next.plane.row_bytes;
  step.ahead = {.data = next.rows.data, .stride = next.rows.data_stride, .bytes = next.plane.row_bytes};
  step.ahead_head_stride = next.plane.head_stride;
  // Where the heads' rows of the page follow one another, each head asks for its share of the whole in the order of
  // addresses: memory delivers that a third faster.
  if (all_heads && next.plane.token_stride == row_bytes * cache_.layout.num_kv_heads) {
    step.ahead.stride = row_bytes;
    step.ahead_head_stride = next.count * row_bytes;
  }
  step.ahead.data -= (first - begin) * step.ahead.stride;
  if (next.plane.scale_row_bytes > 0) {
    step.ahead.scales = next.rows.scales - (first - begin) * next.rows.scale_stride;
    step.ahead.scale_stride = next.rows.scale_stride;
    step.ahead_scale_head_stride = next.plane.scale_head_stride;
  }
  return step;
}

void TileReader::take(const Step& step, int32_t head, float* buffer, RowTile& tile) const {
  const Planes& planes = step.of_keys ? keys_ : values_;
  if (!step.in_place) {
    read(planes, {.pages = step.pages, .head = head, .first = step.first, .last = step.last}, step.begin, buffer, {});
    tile.rows = {.data = reinterpret_cast<const uint8_t*>(buffer),
                 .data_stride = planes.base.head_dim * int64_t{sizeof(float)}};
    tile.ahead = {};
    return;
  }
  tile.rows = step.rows;
  tile.rows.data += head * step.head_stride;
  tile.rows.scales += head * step.scale_head_stride;
  tile.rows.g = step.scaled ? scale_of(planes, head) : 1.0f;
  tile.ahead = step.ahead;
  if (step.ahead.data != nullptr) tile.ahead.data += head * step.ahead_head_stride;
  if (step.ahead.scales != nullptr) tile.ahead.scales += head * step.ahead_scale_head_stride;
}

TileReader::Run TileReader::run_at(const Planes& planes, const Rows& rows, int32_t first) const {
  const int32_t page_size = cache_.layout.page_size;
  const int32_t entry = rows.pages[first / page_size];
  const int32_t token = first % page_size;
  const bool is_exact = is_exact_page(entry);
  const Plane& plane = is_exact ? planes.exact : planes.base;
  const KvPool& pool = is_exact ? cache_.exact : cache_.base;
  const auto* page = reinterpret_cast<const uint8_t*>(pool.data) + page_id(entry) * pool.page_stride;
  return {.plane = plane,
          .page = page,
          .rows = {.data = page + plane.offset + rows.head * plane.head_stride + token * plane.token_stride,
                   .data_stride = plane.token_stride,
                   .scales = page + plane.scale_offset + rows.head * plane.scale_head_stride +
                             token * plane.scale_token_stride,
                   .scale_stride = plane.scale_token_stride,
                   .g = is_exact ? 1.0f : scale_of(planes, rows.head)},
          .token = token,
          .count = std::min(page_size - token, rows.last - first)};
}

/// Scales are few and lie close together: hardware fetches those.
void TileReader::prefetch(const Run& run) {
  constexpr int32_t kLine = 64;
  const uint8_t* row = run.rows.data;
  for (int32_t i = 0; i < run.count; ++i) {
    for (int32_t byte = 0; byte < run.plane.row_bytes; byte += kLine) __builtin_prefetch(row + byte);
    row += run.rows.data_stride;
  }
}

void TileReader::read(const Planes& planes, const Rows& rows, int32_t tile, float* out, const Rows& ahead) const {
  int32_t next = ahead.first;
  for (int32_t first = rows.first; first < rows.last;) {
    if (next < ahead.last) {
      const Run run = run_at(planes, ahead, next);
      prefetch(run);
      next += run.count;
    }
    const Run run = run_at(planes, rows, first);
    float* to = out + static_cast<int64_t>(first - tile) * run.plane.head_dim;
    if (run.plane.scattered_scale != nullptr)
      read_scattered(run.plane, run.rows, run.page, rows.head, run.token, run.count, to);
    else
      run.plane.expand(run.rows, run.count, run.plane.head_dim, to);
    first += run.count;
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
