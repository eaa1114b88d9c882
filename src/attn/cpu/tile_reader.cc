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

void StepReader::move_to(int32_t begin, int32_t first, int32_t last, int32_t next_last) {
  begin_ = begin;
  first_ = first;
  last_ = last;
  now_ = first == next_first_ ? next_ : reader_.run_at(planes_, {.pages = pages_, .first = first, .last = last}, first);
  now_.count = std::min(reader_.cache_.layout.page_size - now_.token, last - first);
  in_place_ = now_.plane->in_place && now_.count == last - first && reader_.pages_hold_steps();
  next_first_ = -1;
  ahead_.data = nullptr;
  if (!in_place_) return;
  now_.rows.data -= (first - begin) * now_.rows.data_stride;
  now_.rows.scales -= (first - begin) * now_.rows.scale_stride;
  if (next_last > last) look_ahead(next_last);
}

void StepReader::look_ahead(int32_t next_last) {
  next_ = reader_.run_at(planes_, {.pages = pages_, .first = last_, .last = next_last}, last_);
  next_first_ = last_;
  if (next_.count != now_.count) return;
  const TileReader::Plane& plane = *next_.plane;
  const int32_t skipped = first_ - begin_;
  ahead_.stride = next_.rows.data_stride;
  ahead_.bytes = plane.row_bytes;
  ahead_head_stride_ = plane.head_stride;
  // Where the heads' rows of the page follow one another, each head asks for its share of the whole in the order of
  // addresses: memory delivers that a third faster.
  if (all_heads_ && plane.token_stride == int64_t{plane.row_bytes} * reader_.cache_.layout.num_kv_heads) {
    ahead_.stride = plane.row_bytes;
    ahead_head_stride_ = int64_t{next_.count} * plane.row_bytes;
  }
  ahead_.data = next_.rows.data - skipped * ahead_.stride;
  ahead_.scales = plane.scale_row_bytes > 0 ? next_.rows.scales - skipped * next_.rows.scale_stride : nullptr;
  ahead_.scale_stride = next_.rows.scale_stride;
}

void StepReader::take(int32_t head, float* buffer, RowTile& tile) const {
  if (!in_place_) {
    reader_.read(planes_, {.pages = pages_, .head = head, .first = first_, .last = last_}, begin_, buffer, {});
    tile.rows = {.data = reinterpret_cast<const uint8_t*>(buffer),
                 .data_stride = planes_.base.head_dim * int64_t{sizeof(float)}};
    tile.ahead.data = nullptr;
    return;
  }
  const TileReader::Plane& plane = *now_.plane;
  tile.rows = now_.rows;
  tile.rows.data += head * plane.head_stride;
  tile.rows.scales += head * plane.scale_head_stride;
  if (&plane == &planes_.base) tile.rows.g = reader_.scale_of(planes_, head);
  tile.ahead.data = nullptr;
  if (ahead_.data == nullptr) return;
  tile.ahead = ahead_;
  tile.ahead.data += head * ahead_head_stride_;
  if (ahead_.scales != nullptr) tile.ahead.scales += head * next_.plane->scale_head_stride;
}

TileReader::Run TileReader::run_at(const Planes& planes, const Rows& rows, int32_t first) const {
  const int32_t page_size = cache_.layout.page_size;
  const int32_t entry = rows.pages[first / page_size];
  const int32_t token = first % page_size;
  const bool is_exact = is_exact_page(entry);
  const Plane& plane = is_exact ? planes.exact : planes.base;
  const KvPool& pool = is_exact ? cache_.exact : cache_.base;
  const auto* page = reinterpret_cast<const uint8_t*>(pool.data) + page_id(entry) * pool.page_stride;
  return {.plane = &plane,
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
    for (int32_t byte = 0; byte < run.plane->row_bytes; byte += kLine) __builtin_prefetch(row + byte);
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
    float* to = out + static_cast<int64_t>(first - tile) * run.plane->head_dim;
    if (run.plane->scattered_scale != nullptr)
      read_scattered(*run.plane, run.rows, run.page, rows.head, run.token, run.count, to);
    else
      run.plane->expand(run.rows, run.count, run.plane->head_dim, to);
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
