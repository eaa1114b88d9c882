#include "attn/cpu/tile_reader.h"

#include <algorithm>
#include <bit>

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
      page_shift_(std::has_single_bit(static_cast<uint32_t>(cache.layout.page_size))
                      ? std::countr_zero(static_cast<uint32_t>(cache.layout.page_size))
                      : -1),
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
  const TileReader::Place now = first == next_first_ ? next_ : reader_.place_of(planes_, pages_, first);
  next_first_ = -1;
  ahead_data_ = nullptr;
  plane_ = now.plane;
  in_place_ =
      plane_->in_place && rows_in_page(now, last - first) == last - first && reader_.cache_.layout.page_size % 4 == 0;
  if (!in_place_) return;
  const int64_t token = now.token - (first - begin);
  data_ = now.page + plane_->offset + token * plane_->token_stride;
  scales_ = now.page + plane_->scale_offset + token * plane_->scale_token_stride;
  if (next_last > last) look_ahead(next_last);
}

void StepReader::look_ahead(int32_t next_last) {
  const TileReader::Place next = reader_.place_of(planes_, pages_, last_);
  next_ = next;
  next_first_ = last_;
  const int32_t count = rows_in_page(next, next_last - last_);
  if (count != last_ - first_) return;
  const TileReader::Plane& plane = *next.plane;
  // Where the heads' rows of the page follow one another, each head asks for its share of the whole in the order of
  // addresses: memory delivers that a third faster.
  const bool shares = all_heads_ && plane.token_stride == int64_t{plane.row_bytes} * reader_.cache_.layout.num_kv_heads;
  ahead_stride_ = shares ? plane.row_bytes : plane.token_stride;
  ahead_head_stride_ = shares ? int64_t{count} * plane.row_bytes : plane.head_stride;
  const int32_t skipped = first_ - begin_;
  ahead_data_ = next.page + plane.offset + next.token * plane.token_stride - skipped * ahead_stride_;
  ahead_scales_ = next.page + plane.scale_offset + (next.token - skipped) * plane.scale_token_stride;
}

void StepReader::expand(int32_t head, float* buffer, RowTile& tile) const {
  reader_.read(planes_, {.pages = pages_, .head = head, .first = first_, .last = last_}, begin_, buffer, {});
  tile.rows = {.data = reinterpret_cast<const uint8_t*>(buffer),
               .data_stride = planes_.base.head_dim * int64_t{sizeof(float)}};
  tile.ahead.data = nullptr;
}

TileReader::Run TileReader::run_at(const Planes& planes, const Rows& rows, int32_t first) const {
  const Place place = place_of(planes, rows.pages, first);
  const Plane& plane = *place.plane;
  return {.plane = &plane,
          .page = place.page,
          .rows = {.data = place.page + plane.offset + rows.head * plane.head_stride + place.token * plane.token_stride,
                   .data_stride = plane.token_stride,
                   .scales = place.page + plane.scale_offset + rows.head * plane.scale_head_stride +
                             place.token * plane.scale_token_stride,
                   .scale_stride = plane.scale_token_stride,
                   .g = &plane == &planes.exact ? 1.0f : scale_of(planes, rows.head)},
          .token = place.token,
          .count = std::min(cache_.layout.page_size - place.token, rows.last - first)};
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
