#pragma once

// Items of shared pages: the rows of all requests of a run, 128 an item, against the keys that all of them see. Two
// warpgroups attend to 64 rows each, as in the wgmma prefill kernel, and two bring tiles.

#include <cstdint>

#include "attn/cuda/generic/shared_rows.cuh"
#include "attn/cuda/sm90/prefill_wgmma.cuh"

namespace kvant::attn::cuda {

/// How a launch divides its blocks, and shared pages among theirs.
struct SharedDivision {
  int32_t blocks;      ///< For shared pages, the launch's first.
  int32_t units;       ///< Of work: parts of items.
  int32_t part_tiles;  ///< See shared_parts.
};

/// For blocks of 512 threads, whose rows of 128 are threadIdx.y.
template <UnitFormat kUnits_, int kHeadDim>
struct SharedPagesTraits
    : PrefillWgmmaTraits<kUnits_ == UnitFormat::k16Bits ? TileSource::kBf16 : TileSource::kQuantised, kHeadDim,
                         kHeadDim, kSharedItemRows, 256> {
  using Base = typename SharedPagesTraits::PrefillWgmmaTraits;
  using Products = WarpgroupProducts<SharedPagesTraits>;
  static constexpr UnitFormat kUnits = kUnits_;
  static constexpr bool kRowsAtOnce = true, kPeeled = false;
  static_assert(Base::kKeys == kSharedTileKeys);

  __device__ __forceinline__ static uint32_t thread() { return threadIdx.x + thread_of_row(); }
  __device__ __forceinline__ static uint32_t thread_of_row() { return 128 * threadIdx.y; }
};

template <class Traits>
class SharedPagesBlock : private PipelinedRoles<Traits, SharedPagesBlock<Traits>> {
 public:
  using Base = PipelinedRoles<Traits, SharedPagesBlock>;
  __device__ __forceinline__ SharedPagesBlock(const PrefillParams& params, const SharedRows& rows,
                                              typename Traits::SharedStorage& shared, const SharedDivision& division)
      : Base(params, shared), rows_(rows), division_(division) {}
  __device__ __forceinline__ void run() { Base::run(division_); }

 private:
  friend Base;
  __device__ __forceinline__ static int32_t first_position(const SharedDivision&) { return 0; }
  __device__ __forceinline__ void find_item(const SharedDivision&, uint32_t n, int32_t&,
                                            PrefillSegment& segment) const {
    const auto unit = static_cast<int32_t>(blockIdx.x + n * division_.blocks);
    if (unit < division_.units) {
      const PrefillSegment found = find_unit(unit);
      if (lane_ == 0) segment = found;
    } else if (lane_ == 0) {
      segment.request = -1;
    }
  }
  __device__ __forceinline__ void finish_item(const SharedDivision&, const PrefillSegment& s) const {
    store_part(s);
    Traits::sync_workers();
    tell_requests(s);
  }
  __device__ __forceinline__ static void leave_items(const SharedDivision&) {}

  using Base::acc_;
  using Base::lane_;
  using Base::limit_;
  using Base::p_;
  using Base::shared_;
  using Base::sum_;
  using Base::warp_;

  struct Items {
    int32_t row_tiles, tiles, parts;
  };
  /// Of one KV head of the run that request r leads.
  __device__ __forceinline__ Items items_of(int32_t r) const {
    const SharedRun run = rows_.runs[1 + r];
    if (run.num_requests == 0 || run.first_request != r) return {0, 0, 0};
    const int32_t num_rows = (rows_.q_offsets[r + run.num_requests] - rows_.q_offsets[r]) * rows_.group;
    const int32_t tiles = shared_tiles(rows_, run);
    return {(num_rows + kSharedItemRows - 1) / kSharedItemRows, tiles, shared_parts(tiles, division_.part_tiles)};
  }

  /// By one warp. item_begin is the part.
  __device__ __forceinline__ PrefillSegment find_unit(int32_t unit) const {
    const typename Base::Place place = this->locate(rows_.num_requests, unit, [&](int32_t r, bool exists) {
      if (!exists) return 0;
      const Items items = items_of(r);
      return rows_.num_kv_heads * items.row_tiles * items.parts;
    });
    const Items items = items_of(place.index);
    const SharedRun run = rows_.runs[1 + place.index];
    const int32_t item = place.rest / items.parts, part = place.rest % items.parts;
    const int32_t size = shared_part_size(items.tiles, division_.part_tiles);
    PrefillSegment s;
    s.request = place.index;
    s.entries = p_.page_table + s.request * p_.page_table_stride;
    s.head = item / items.row_tiles, s.row_tile = item % items.row_tiles;
    s.q_begin = rows_.q_offsets[s.request];
    s.q_len = rows_.q_offsets[s.request + run.num_requests] - s.q_begin;
    s.num_rows = min(s.q_len * rows_.group - s.row_tile * kSharedItemRows, kSharedItemRows);
    s.global_len = s.key_end = run.num_pages << rows_.page_shift;
    s.key_begin = s.full_begin = 0;
    s.full_end = s.key_end / kSharedTileKeys;
    s.tile_begin = part * size;
    s.tile_end = min(s.tile_begin + size, items.tiles);
    s.item_begin = part, s.item_tiles = items.tiles;
    if constexpr (Traits::kSource == TileSource::kQuantised) {
      s.k = this->scaling(p_.k_scales, s.head, p_.base.plane[0].format);
      s.v = this->scaling(p_.v_scales, s.head, p_.base.plane[1].format);
    } else {
      s.k.factor = s.v.factor = 1.0f;
    }
    return s;
  }

  __device__ __forceinline__ void store_part(const PrefillSegment& s) const {
    const int64_t first = s.item_begin * rows_.part_stride;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = sum_[0][h];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int32_t row = this->row_of(0, h);
      if (row >= s.num_rows) continue;
      const int64_t index = first + this->q_row_index(s, row);
      const float top = sum > 0.0f ? limit_[0][h] + this->missing_bias(row) : -INFINITY;
      if (lane_ % 4 == 0) rows_.part_state[index] = make_float2(top, sum);
      float* out = rows_.part_out + index * Traits::kDimV + lane_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < Traits::kDimV / 8; ++i)
        *reinterpret_cast<float2*>(out + 8 * i) =
            make_float2(acc_[0][i][2 * h] * s.v.factor, acc_[0][i][2 * h + 1] * s.v.factor);
    }
  }

  /// A thread a request, so that they are told together.
  __device__ __forceinline__ void tell_requests(const PrefillSegment& s) const {
    const int32_t last_request = s.request + rows_.runs[1 + s.request].num_requests;
    const int32_t first_row = s.row_tile * kSharedItemRows, last_row = first_row + s.num_rows - 1;
    for (auto request = static_cast<int32_t>(s.request + Traits::thread()); request < last_request;
         request += Traits::kWorkers) {
      const RowsInRun rows = rows_in_run(rows_, request);
      if (rows.first > last_row || rows.last < first_row || rows.last < rows.first) continue;
      add_release(shared_counter(rows_, request, s.head), 1);
    }
  }

  const SharedRows& rows_;
  const SharedDivision division_;
};

}  // namespace kvant::attn::cuda
