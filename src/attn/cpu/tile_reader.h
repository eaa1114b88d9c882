#pragma once

#include <algorithm>
#include <cstdint>

#include "attn/cpu/attention_kernels.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn::cpu {

/// Reads keys or values of one request page by page, each page from the pool that its table entry names.
class TileReader {
 public:
  /// Rows [first, last) of one head.
  struct Rows {
    const int32_t* pages = nullptr;  ///< The request's row of the page table.
    int32_t head = 0;
    int32_t first = 0, last = 0;
  };

  TileReader(const AttentionKernels& kernels, const KvCacheView& cache);

  /// Writes keys to out[row - tile]: [kKeyTile, head_dim_k]. Meanwhile asks memory for `ahead`, the values that are
  /// read next: pages lie anywhere, which hardware cannot foresee.
  void read_keys(const Rows& keys, int32_t tile, float* out, const Rows& ahead) const;
  /// The same for values, and the keys that are read next.
  void read_values(const Rows& values, int32_t tile, float* out, const Rows& ahead) const;

  /// Whether any step's keys, or values, are read as nvfp4: in lane order.
  bool keys_in_lane_order() const { return keys_.base.in_place && keys_.base.format == KvFormat::kNvfp4; }
  bool values_in_lane_order() const { return values_.base.in_place && values_.base.format == KvFormat::kNvfp4; }

 private:
  friend class StepReader;

  /// One plane (K or V) of one pool.
  struct Plane {
    ExpandRows expand = nullptr;
    KvFormat format = KvFormat::kF32;
    bool in_place = false;  ///< Row kernels read it as it is.
    int64_t token_stride = 0, head_stride = 0, offset = 0;
    int64_t scale_token_stride = 0, scale_head_stride = 0, scale_offset = 0;
    int32_t row_bytes = 0, scale_row_bytes = 0, head_dim = 0;
    /// Address of a scale whose order is not linear.
    int64_t (KvLayout::*scattered_scale)(int32_t head, int32_t token, int32_t block) const = nullptr;
  };
  struct PlaneSource;
  static Plane make_plane(const AttentionKernels& kernels, const KvLayout& layout, const PlaneSource& source);
  static Plane key_plane(const AttentionKernels& kernels, const KvLayout& layout);
  static Plane value_plane(const AttentionKernels& kernels, const KvLayout& layout);

  /// The planes of both pools that hold the same rows.
  struct Planes {
    Plane base, exact;
  };
  /// Where a key lies.
  struct Place {
    const Plane* plane;
    const uint8_t* page;
    int32_t token;
  };
  Place place_of(const Planes& planes, const int32_t* pages, int32_t key) const {
    const int32_t page_size = cache_.layout.page_size;
    const int32_t index = page_shift_ >= 0 ? key >> page_shift_ : key / page_size;
    const bool is_exact = is_exact_page(pages[index]);
    const KvPool& pool = is_exact ? cache_.exact : cache_.base;
    return {.plane = is_exact ? &planes.exact : &planes.base,
            .page = reinterpret_cast<const uint8_t*>(pool.data) + page_id(pages[index]) * pool.page_stride,
            .token = key - index * page_size};
  }
  /// Rows of one page.
  struct Run {
    const Plane* plane;
    const uint8_t* page;
    EncodedRows rows;
    int32_t token, count;
  };
  Run run_at(const Planes& planes, const Rows& rows, int32_t first) const;
  static void prefetch(const Run& run);
  float scale_of(const Planes& planes, int32_t head) const {
    return &planes == &keys_ ? cache_.scales.k_scale(head) : cache_.scales.v_scale(head);
  }
  void read(const Planes& planes, const Rows& rows, int32_t tile, float* out, const Rows& ahead) const;
  void read_scattered(const Plane& plane, EncodedRows rows, const uint8_t* page, int32_t head, int32_t token,
                      int32_t count, float* out) const;

  const KvCacheView& cache_;
  const int32_t page_shift_;  ///< Of a page size that is a power of two; -1 = none.
  Planes keys_, values_;
};

/// Reads one request's keys, or values, in the steps that few query rows take: rows of every head at once, in place
/// where a step lies in one page whose format row kernels read.
class StepReader {
 public:
  static StepReader of_keys(const TileReader& reader, const int32_t* pages, bool all_heads) {
    return {reader, reader.keys_, pages, all_heads};
  }
  static StepReader of_values(const TileReader& reader, const int32_t* pages, bool all_heads) {
    return {reader, reader.values_, pages, all_heads};
  }

  /// To rows [first, last), in a step from `begin` on; those up to `next_last` come next.
  void move_to(int32_t begin, int32_t first, int32_t last, int32_t next_last);
  /// Points `tile` to one head's rows: in place, or expanded into `buffer` [kRowStep, head_dim], row 0 being `begin`.
  void take(int32_t head, float* buffer, RowTile& tile) const {
    if (!in_place_) return expand(head, buffer, tile);
    tile.rows.data = data_ + head * plane_->head_stride;
    tile.rows.data_stride = plane_->token_stride;
    tile.rows.scales = scales_ + head * plane_->scale_head_stride;
    tile.rows.scale_stride = plane_->scale_token_stride;
    tile.rows.g = plane_ == &planes_.base ? reader_.scale_of(planes_, head) : 1.0f;
    tile.ahead.data = nullptr;
    if (ahead_data_ == nullptr) return;
    tile.ahead.data = ahead_data_ + head * ahead_head_stride_;
    tile.ahead.stride = ahead_stride_;
    tile.ahead.bytes = next_.plane->row_bytes;
    const bool scaled = next_.plane->scale_row_bytes > 0;
    tile.ahead.scales = scaled ? ahead_scales_ + head * next_.plane->scale_head_stride : nullptr;
    tile.ahead.scale_stride = next_.plane->scale_token_stride;
  }

  KvFormat format() const { return in_place_ ? plane_->format : KvFormat::kF32; }
  int32_t begin() const { return begin_; }
  int32_t first() const { return first_; }
  int32_t last() const { return last_; }

 private:
  /// `all_heads`: the same rows of all heads are read in turn.
  StepReader(const TileReader& reader, const TileReader::Planes& planes, const int32_t* pages, bool all_heads)
      : reader_(reader), planes_(planes), pages_(pages), all_heads_(all_heads) {}
  void look_ahead(int32_t next_last);
  void expand(int32_t head, float* buffer, RowTile& tile) const;
  int32_t rows_in_page(const TileReader::Place& place, int32_t wanted) const {
    return std::min(reader_.cache_.layout.page_size - place.token, wanted);
  }

  const TileReader& reader_;
  const TileReader::Planes& planes_;
  const int32_t* pages_;
  const bool all_heads_;
  int32_t begin_ = 0, first_ = 0, last_ = 0;
  bool in_place_ = false;
  const TileReader::Plane* plane_ = nullptr;
  const uint8_t *data_ = nullptr, *scales_ = nullptr;  ///< Of head 0 at `begin`.
  TileReader::Place next_{};
  int32_t next_first_ = -1;  ///< The key of next_; -1 = none.
  /// What the reader of head 0 should ask memory for; null = nothing.
  const uint8_t *ahead_data_ = nullptr, *ahead_scales_ = nullptr;
  int64_t ahead_stride_ = 0, ahead_head_stride_ = 0;
};

}  // namespace kvant::attn::cpu
