#pragma once

// What a block works on: every block scans the lengths and finds its work by itself.

#include <cstdint>

#include "attn/cuda/common/attention_math.cuh"
#include "attn/cuda/common/ptx.cuh"
#include "attn/cuda/common/tile_units.cuh"
#include "attn/cuda/generic/prefill_flash.h"

namespace kvant::attn::cuda {

/// How stored numbers of one head become f16 operands, and what is left for the kernel to undo.
struct PrefillScaling {
  float factor;          ///< Undoes what the operand carries.
  uint32_t multiplier;   ///< f16x2, of codes or their scales.
  float operand_over_g;  ///< Of exact values.
};

/// One (request, KV head, row tile) and the part of its keys that a block works on. Keys are this rank's.
struct PrefillSegment {
  const int32_t* entries;  ///< Of the page table.
  int32_t request, head, row_tile;
  int32_t q_begin, q_len, global_len;
  int32_t num_rows;            ///< Of this row tile.
  int32_t key_begin, key_end;  ///< Keys that some row may see; no other is read.
  int32_t tile_begin, tile_end;
  int32_t full_begin, full_end;  ///< Tiles whose keys every row sees.
  PrefillScaling k, v;
  int32_t item_begin, item_tiles;  ///< When items are cut: the item's place in the list of tiles.
  int32_t position;                ///< In the list of items, or of tiles when items are cut.
};

/// Work of a request: row tiles by KV heads. With many of them a block takes whole items as they come; with few, the
/// list of all their tiles is cut into equal shares.
template <class Traits>
class PrefillWork {
 public:
  using SharedStorage = typename Traits::SharedStorage;

  __device__ PrefillWork(const PrefillParams& params, SharedStorage& shared)
      : p_(params),
        shared_(shared),
        warp_(static_cast<int32_t>(Traits::thread() / 32)),
        lane_(static_cast<int32_t>(threadIdx.x % 32)) {}

 protected:
  static constexpr int kRows = Traits::kRows;
  static constexpr int kKeys = Traits::kKeys;
  /// Whole items from this many a block on.
  static constexpr int32_t kItemsPerBlock = 3;
  /// Fewest tiles of a share, so that little work is not cut into parts that cost more to merge.
  static constexpr int32_t kMinShare = 4;
  /// Row tiles that a lane counts by itself.
  static constexpr int32_t kFewTiles = 4;

  struct Request {
    int32_t q_begin, q_len, global_len;
  };
  struct Keys {
    int32_t begin, end, tile_begin, tile_end, full_begin, full_end;
    __device__ int32_t tiles() const { return tile_end - tile_begin; }
  };
  struct Place {
    int32_t index, rest;
  };

  __device__ Request request_of(int32_t r) const {
    Request request;
    request.q_begin = p_.q_offsets[r];
    request.q_len = p_.q_offsets[r + 1] - request.q_begin;
    request.global_len = request.q_len > 0 ? p_.kv_lens[r] : 0;
    return request;
  }
  __device__ int32_t row_tiles(const Request& r) const { return (r.q_len * p_.group + kRows - 1) / kRows; }
  __device__ int32_t local(int32_t length) const {
    return owned_keys(max(length, 0), p_.cp_rank, p_.cp_size, p_.cp_interleave);
  }

  /// Keys of a row tile. An item has at least one tile, so that rows without keys are written like all others.
  __device__ Keys keys_of(const Request& r, int32_t row_tile) const {
    const int32_t block = r.global_len - r.q_len;
    const int32_t first_token = row_tile * kRows / p_.group;
    const int32_t last_token = min((row_tile + 1) * kRows - 1, r.q_len * p_.group - 1) / p_.group;
    const bool causal = p_.draft_mask == DraftMask::kCausal;
    const bool packed = p_.draft_mask == DraftMask::kPacked;
    Keys k;
    k.end = local(causal ? block + last_token + 1 : r.global_len);
    k.begin = k.full_begin = 0;
    // Positions of tree rows lie anywhere in the draft block.
    const int32_t oldest = p_.positions != nullptr ? block : block + first_token;
    const int32_t newest = p_.positions != nullptr ? r.global_len - 1 : block + last_token;
    if (p_.window > 0) {
      k.begin = local(oldest - p_.window + 1);
      k.full_begin = (local(newest - p_.window + 1) + kKeys - 1) / kKeys;
    }
    k.full_end = local(causal ? block + first_token + 1 : packed ? block : r.global_len) / kKeys;
    k.tile_begin = k.begin / kKeys;
    k.tile_end = max((k.end + kKeys - 1) / kKeys, k.tile_begin + 1);
    return k;
  }

  /// Tiles of one KV head of a request, by a warp together.
  __device__ int32_t tiles_of_head(const Request& r) const {
    int32_t tiles = 0;
    for (int32_t t = lane_; t < row_tiles(r); t += 32) tiles += keys_of(r, t).tiles();
    return __reduce_add_sync(0xffffffffu, tiles);
  }
  /// Work of a lane's request, or of none; by a warp together.
  __device__ int32_t work_of(int32_t r, bool exists, bool whole) const {
    const Request request = exists ? request_of(r) : Request{0, 0, 0};
    const int32_t tiles = row_tiles(request);
    if (whole) return tiles * p_.num_kv_heads;
    int32_t work = 0;
    if (tiles <= kFewTiles)
      for (int32_t t = 0; t < tiles; ++t) work += keys_of(request, t).tiles();
    // Long prompts are shared by the lanes.
    for (uint32_t rest = __ballot_sync(0xffffffffu, tiles > kFewTiles); rest != 0; rest &= rest - 1) {
      const int lane = __ffs(static_cast<int>(rest)) - 1;
      const Request other{__shfl_sync(0xffffffffu, request.q_begin, lane),
                          __shfl_sync(0xffffffffu, request.q_len, lane),
                          __shfl_sync(0xffffffffu, request.global_len, lane)};
      const int32_t sum = tiles_of_head(other);
      if (lane_ == lane) work = sum;
    }
    return work * p_.num_kv_heads;
  }

  __device__ static int32_t scan_lanes(int32_t value) {
#pragma unroll
    for (int32_t delta = 1; delta < 32; delta *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, value, delta);
      if (static_cast<int32_t>(threadIdx.x % 32) >= delta) value += other;
    }
    return value;
  }

 public:
  /// shared_.scan[i] = work before the i-th group of requests; returns all work. Every block computes the same.
  __device__ int32_t scan_requests(bool whole) {
    const int32_t per_group = requests_per_group();
    __syncthreads();
    for (int32_t g = warp_; g < Traits::kScanGroups; g += Traits::kWarps) {
      int32_t sum = 0;
      for (int32_t i = 0; i < per_group; i += 32) {
        const int32_t r = g * per_group + i + lane_;
        sum += work_of(r, i + lane_ < per_group && r < p_.num_requests, whole);
      }
      sum = __reduce_add_sync(0xffffffffu, sum);
      if (lane_ == 0) shared_.scan[g + 1] = sum;
    }
    if (Traits::thread() == 0) shared_.scan[0] = 0;
    __syncthreads();
    if (warp_ == 0) {
      int32_t before = 0;
#pragma unroll
      for (int32_t i = 0; i < Traits::kScanGroups; i += 32) {
        const int32_t sum = before + scan_lanes(shared_.scan[1 + i + lane_]);
        shared_.scan[1 + i + lane_] = sum;
        before = __shfl_sync(0xffffffffu, sum, 31);
      }
    }
    __syncthreads();
    return shared_.scan[Traits::kScanGroups];
  }

 protected:
  __device__ int32_t requests_per_group() const {
    return (p_.num_requests + Traits::kScanGroups - 1) / Traits::kScanGroups;
  }

  /// Which of `count` consecutive pieces of work holds `position`, and the place in it. By one warp; work(i, exists)
  /// is asked by all lanes together.
  template <class Work>
  __device__ Place locate(int32_t count, int32_t position, const Work& work) const {
    for (int32_t i = 0; i < count; i += 32) {
      const int32_t mine = work(i + lane_, i + lane_ < count);
      const int32_t sum = scan_lanes(mine);
      const uint32_t past = __ballot_sync(0xffffffffu, sum > position);
      if (past != 0) {
        const int32_t found = __ffs(static_cast<int>(past)) - 1;
        return {i + found, position - __shfl_sync(0xffffffffu, sum - mine, found)};
      }
      position -= __shfl_sync(0xffffffffu, sum, 31);
    }
    return {count, 0};
  }

 public:
  /// By one warp; `end` bounds the tiles when items are cut.
  __device__ PrefillSegment find_segment(int32_t position, int32_t end, bool whole) const {
    const int32_t per_group = requests_per_group();
    const Place group = locate(Traits::kScanGroups, position, [&](int32_t g, bool exists) {
      return exists ? shared_.scan[g + 1] - shared_.scan[g] : 0;
    });
    const int32_t first = group.index * per_group;
    const Place in_group = locate(min(per_group, p_.num_requests - first), group.rest,
                                  [&](int32_t i, bool exists) { return work_of(first + i, exists, whole); });
    PrefillSegment s;
    s.request = first + in_group.index;
    const Request r = request_of(s.request);
    const int32_t tiles = row_tiles(r);
    int32_t skipped = 0;
    if (whole) {
      s.head = in_group.rest / tiles;
      // The longest first: what is left at the end is short.
      s.row_tile = tiles - 1 - in_group.rest % tiles;
    } else {
      const int32_t of_head = tiles_of_head(r);
      s.head = in_group.rest / of_head;
      const Place tile = locate(tiles, in_group.rest % of_head,
                                [&](int32_t t, bool exists) { return exists ? keys_of(r, t).tiles() : 0; });
      s.row_tile = tile.index;
      skipped = tile.rest;
    }
    const Keys k = keys_of(r, s.row_tile);
    s.entries = p_.page_table + s.request * p_.page_table_stride;
    s.q_begin = r.q_begin, s.q_len = r.q_len, s.global_len = r.global_len;
    s.num_rows = min(r.q_len * p_.group - s.row_tile * kRows, kRows);
    s.key_begin = k.begin, s.key_end = k.end;
    s.tile_begin = k.tile_begin + skipped;
    s.tile_end = whole ? k.tile_end : min(k.tile_end, s.tile_begin + (end - position));
    s.full_begin = k.full_begin, s.full_end = k.full_end;
    s.item_begin = position - skipped, s.item_tiles = k.tiles(), s.position = position;
    if constexpr (Traits::kSource == TileSource::kQuantised) {
      s.k = scaling(p_.k_scales, s.head, p_.base.plane[0].format);
      s.v = scaling(p_.v_scales, s.head, p_.base.plane[1].format);
    } else {
      s.k.factor = s.v.factor = 1.0f;
    }
    return s;
  }

 protected:
  __device__ PrefillScaling scaling(const float* scales, int32_t head, KvFormat format) const {
    const float g = scales == nullptr ? 1.0f : scales[p_.scale_count == 1 ? 0 : head];
    const int shift = unit_shift(format);
    // With exact pages the operand is about the value itself, so that both kinds of page agree; f16 bounds it.
    const float largest = format == KvFormat::kNvfp4 ? 0x1p-7f : 1.0f;
    float wanted = largest;
    if (p_.exact_pages && g > 0.0f) {
      wanted = g;
      if (wanted > largest) wanted = g * power_of_two(exponent_of(largest) - 1 - exponent_of(g));
      wanted = fmaxf(wanted, 0x1p-14f);
    }
    const __half multiplier = __float2half_rn(wanted * power_of_two(shift));
    const float operand = __half2float(multiplier) * power_of_two(-shift);
    return {.factor = g / operand,
            .multiplier = pack_f16(__half2float(multiplier), __half2float(multiplier)),
            .operand_over_g = g > 0.0f ? operand / g : 1.0f};
  }

  __device__ int64_t q_row_index(const PrefillSegment& s, int32_t row_of_tile) const {
    const int32_t row = s.row_tile * kRows + row_of_tile;
    const int32_t num_q_heads = p_.num_kv_heads * p_.group;
    return (static_cast<int64_t>(s.q_begin) + row / p_.group) * num_q_heads + s.head * p_.group + row % p_.group;
  }

  const PrefillParams& p_;
  SharedStorage& shared_;
  const int32_t warp_, lane_;
};

/// Once an item, and out of line: the main loop's code and registers stay together.
template <class Traits>
__device__ __noinline__ int32_t scan_prefill_requests(const PrefillParams& params,
                                                      typename Traits::SharedStorage& shared, bool whole) {
  return PrefillWork<Traits>(params, shared).scan_requests(whole);
}
template <class Traits>
__device__ __noinline__ void find_prefill_segment(const PrefillParams& params, typename Traits::SharedStorage& shared,
                                                  PrefillSegment& segment, int32_t position, int32_t end, bool whole) {
  const PrefillSegment found = PrefillWork<Traits>(params, shared).find_segment(position, end, whole);
  if (threadIdx.x % 32 == 0) segment = found;
}

}  // namespace kvant::attn::cuda
