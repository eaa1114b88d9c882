#pragma once

// What a block works on: every block scans the lengths and finds its share by itself.

#include <cstdint>

#include "attn/cuda/common/attention_math.cuh"
#include "attn/cuda/common/codecs.cuh"
#include "attn/cuda/common/ptx.cuh"
#include "attn/cuda/generic/decode_cut.cuh"
#include "attn/cuda/generic/decode_splitkv.h"

namespace kvant::attn::cuda {

namespace detail {

/// Scores may exceed the running reference by this much (a factor 2^8) before it moves: P stays within f16.
inline constexpr float kRescaleSlack = 8.0f;
/// Stands for "no score yet": below every real score, and finite, so that differences of it are numbers.
inline constexpr float kNoScore = -1e30f;
inline constexpr float kLeastFactor = 1e-30f;

__device__ __forceinline__ uint32_t pack_out(DType dtype, float low, float high) {
  return dtype == DType::kF16 ? pack_f16(low, high) : pack_bf16(low, high);
}
/// A word of global memory past L1, which would keep it: a kernel that has not ended may write it.
__device__ __forceinline__ int32_t load_past_l1(const int32_t* p) {
  int32_t v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

/// Four adjacent elements; `index` is a multiple of four.
__device__ __forceinline__ void store_out(void* out, DType dtype, int64_t index, float4 v) {
  if (dtype == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(out) + index) = v;
  } else {
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(out) + index) =
        make_uint2(pack_out(dtype, v.x, v.y), pack_out(dtype, v.z, v.w));
  }
}

}  // namespace detail

/// What every part of a block's work sees: parameters, shared memory, the thread's place and the rows in registers.
template <class Traits>
class DecodeContext {
 public:
  using SharedStorage = typename Traits::SharedStorage;

  __device__ DecodeContext(const typename Traits::Params& params, SharedStorage& shared, int32_t* prefix)
      : p_(params),
        shared_(shared),
        prefix_(prefix),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        g_(lane_ / 4),
        t_(lane_ % 4),
        stages_(opaque(shared_address(shared.stages[threadIdx.x / 32]))) {}

 protected:
  static constexpr int kRowTiles = Traits::kRowTiles;

  const typename Traits::Params& p_;
  SharedStorage& shared_;
  int32_t* prefix_;  ///< [num_requests + 1] work units before each request
  const int32_t warp_, lane_, g_, t_;
  const uint32_t stages_;  ///< Shared-memory address of this warp's ring.
  uint32_t q_[Traits::kSharedRows ? 1 : kRowTiles][Traits::kSteps][2];
  float acc_[kRowTiles][Traits::kTiles][4];
  /// A score, times log2(e), is product * factor_ + bias. A weight is 2^(score - reference), that is 2^(product *
  /// factor_ + offset_), and the reference moves when a product exceeds outgrown_.
  float factor_[kRowTiles][2];
  float offset_[kRowTiles][2], outgrown_[Traits::kSharedRows ? 1 : kRowTiles][2];
  float sum_[kRowTiles][2];

  // Blocks of 128 threads; Traits says whether those are the launch's blocks, or several of them are one.
  __device__ __forceinline__ int32_t block() const { return Traits::block(shared_); }
  __device__ __forceinline__ int32_t num_blocks() const { return Traits::num_blocks(shared_); }
  __device__ __forceinline__ static void sync_block() { Traits::sync_block(); }
  __device__ __forceinline__ static bool all_of_block(bool value) { return Traits::all_of_block(value); }

  // A team is the warps that work on the same segment: a block's, or one alone.
  __device__ __forceinline__ detail::Sharing sharing() const { return shared_.sharing[warp_]; }
  __device__ __forceinline__ static bool is_alone(detail::Sharing sharing) {
    return Traits::kAlone && (sharing == detail::Sharing::kWarp || sharing == detail::Sharing::kItem);
  }
  __device__ __forceinline__ bool alone() const { return is_alone(sharing()); }
  /// Whether a team has one segment and no more.
  __device__ __forceinline__ static bool has_one(detail::Sharing sharing) {
    return sharing == detail::Sharing::kPart || sharing == detail::Sharing::kItem;
  }
  /// Whether each warp keeps its segments by itself.
  __device__ __forceinline__ bool own_segments() const { return sharing() != detail::Sharing::kBlock; }
  __device__ __forceinline__ int32_t chunk() const { return alone() ? warp_ * num_blocks() + block() : block(); }
  __device__ __forceinline__ void sync_team() const {
    if (alone())
      __syncwarp();
    else
      sync_block();
  }
  /// What the team works on, and then: three segments in turn; registers are dearer than shared memory.
  __device__ __forceinline__ detail::Segment& segment(int32_t index) const {
    if constexpr (Traits::kOneSegment)
      return shared_.segments[!own_segments() ? index : index == 0 ? warp_ : Traits::kWarps];
    else
      return shared_.segments[(own_segments() ? 3 * warp_ : 0) + index];
  }

  __device__ __forceinline__ float bias(int n, int j) const { return shared_.bias[warp_][8 * n + 2 * t_ + j]; }
  __device__ __forceinline__ float reference(int n, int j) const { return bias(n, j) - offset_[n][j]; }
  __device__ __forceinline__ void set_reference(int n, int j, float reference) {
    offset_[n][j] = bias(n, j) - reference;
    if constexpr (!Traits::kSharedRows)
      outgrown_[n][j] = __fdividef(detail::kRescaleSlack - offset_[n][j], factor_[n][j]);
  }
};

/// Work of a request: tiles of 16 keys that any of its rows may see, times KV heads and row tiles.
template <class Traits>
class DecodeWork : protected DecodeContext<Traits> {
 protected:
  using Base = DecodeContext<Traits>;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kRows = Traits::kRows;
  using Base::all_of_block;
  using Base::alone;
  using Base::Base;
  using Base::block;
  using Base::chunk;
  using Base::lane_;
  using Base::num_blocks;
  using Base::p_;
  using Base::prefix_;
  using Base::shared_;
  using Base::sync_block;
  using Base::warp_;

  struct Extent {
    int32_t q_begin, q_len, global_len, kv_len, row_tiles, first_key, tile_begin, tile_end;
    __device__ int32_t tiles() const { return tile_end - tile_begin; }
  };

  /// What the device's memory says of a request.
  struct Lengths {
    int32_t q_begin, q_end, kv_len;
    __device__ __forceinline__ bool operator==(const Lengths& other) const {
      return q_begin == other.q_begin && q_end == other.q_end && kv_len == other.kv_len;
    }
  };

  /// A guess is read while the kernels before this one may still write.
  __device__ __forceinline__ Lengths lengths(int32_t request, bool guess = false) const {
    const int32_t *q = p_.q_offsets + request, *kv = p_.kv_lens + request;
    if (guess) return {detail::load_past_l1(q), detail::load_past_l1(q + 1), detail::load_past_l1(kv)};
    return {q[0], q[1], kv[0]};
  }
  /// Whether no address that follows from a guess lies outside what the caller has named. Lengths that do not fit each
  /// other may add up to anything.
  __device__ __forceinline__ bool is_plausible(const detail::Segment& s) const {
    return s.request < p_.num_requests && s.head >= 0 && s.head < p_.num_kv_heads && s.row_tile >= 0;
  }
  __device__ __forceinline__ bool are_plausible(const Lengths& l) const {
    const int64_t most = p_.page_table_stride << p_.page_shift;
    return l.q_begin >= 0 && l.q_begin <= l.q_end && l.q_end <= p_.num_tokens && l.kv_len >= 0 && l.kv_len <= most;
  }

  __device__ __forceinline__ Extent extent(int32_t request) const { return extent(request, lengths(request)); }
  __device__ __forceinline__ Extent extent(int32_t request, const Lengths& lengths) const {
    Extent e;
    e.q_begin = lengths.q_begin;
    e.q_len = lengths.q_end - e.q_begin;
    e.global_len = e.q_len > 0 ? lengths.kv_len : 0;
    e.kv_len = owned_keys(e.global_len, p_.cp_rank, p_.cp_size, p_.cp_interleave);
    e.row_tiles = (e.q_len * p_.group + kRows - 1) / kRows;
    const int32_t oldest = p_.window > 0 ? max(e.global_len - e.q_len - p_.window + 1, 0) : 0;
    e.first_key = owned_keys(oldest, p_.cp_rank, p_.cp_size, p_.cp_interleave);
    // Without a window, which goes with no shared run.
    if constexpr (Traits::kShares) e.first_key = p_.shared.runs[1 + request].num_pages << p_.page_shift;
    e.tile_begin = e.first_key / Traits::kTileTokens;
    e.tile_end = (e.kv_len + Traits::kTileTokens - 1) / Traits::kTileTokens;
    return e;
  }

  __device__ __forceinline__ detail::Chunks cut(int32_t total, int32_t item, int32_t num_items) const {
    constexpr int kMostAlone = !Traits::kAlone ? 0 : Traits::kOneSegment ? 1 : 1 << 20;
    return detail::cut_work<Traits::kWarps, Traits::kMinShare, (Traits::kTileBytes >= 8192), kMostAlone>(
        total, item, num_items, num_blocks());
  }
  /// Over the lanes up to and with this one, of the first `lanes`.
  __device__ __forceinline__ static int32_t inclusive_sum(int32_t sum, int32_t lane, int32_t lanes = 32) {
#pragma unroll
    for (int32_t delta = 1; delta < 32; delta *= 2) {
      if (delta >= lanes) break;
      const int32_t other = __shfl_up_sync(0xffffffffu, sum, delta);
      if (lane >= delta) sum += other;
    }
    return sum;
  }

  /// prefix_[r] = positions before request r, and the chunks, which it returns; every block computes the same. Rows
  /// that see no key are written. Warps that work alone, and else the first warp, may look at the rest at once, other
  /// warps after a barrier.
  __device__ detail::Chunks scan_lengths() {
    if constexpr (!Traits::kMany)
      return scan_few(false);
    else if constexpr (!Traits::kFew)
      return scan_many();
    else
      return p_.num_requests <= kFewRequests ? scan_few(false) : scan_many();
  }
  /// What a guess gives where it fails, or where segments are more than one.
  __device__ __forceinline__ static detail::Chunks no_guess() { return {-1, 0, 0, detail::Sharing::kBlock}; }

  /// Whether a guess was right: it took the lengths that the kernels before this one have left. Each warp by itself.
  __device__ __forceinline__ bool confirm_lengths(const Lengths& now) {
    if (!__all_sync(0xffffffffu, now == guessed_)) return false;
    const Extent e = extent(lane_request(), now);
    write_empty(__ballot_sync(0xffffffffu, lane_ < p_.num_requests && (e.tiles() <= 0 || e.row_tiles == 0)));
    return true;
  }
  /// The lane's request, of up to 32.
  __device__ __forceinline__ int32_t lane_request() const { return lane_ < p_.num_requests ? lane_ : 0; }
  __device__ __forceinline__ Lengths lane_lengths(bool guess) const { return lengths(lane_request(), guess); }
  /// A lane a request; each warp by itself. A guess finds the warp's one segment and does nothing else: it writes no
  /// rows and waits at no barrier, so that warps may part over it.
  __device__ __forceinline__ detail::Chunks scan_few(bool guess) {
    const bool is_one = lane_ < p_.num_requests;
    guessed_ = lane_lengths(guess);
    if (guess && !__all_sync(0xffffffffu, are_plausible(guessed_))) return no_guess();
    const Extent e = extent(lane_request(), guessed_);
    const int32_t tiles = is_one ? max(e.tiles(), 0) : 0;
    const int32_t items = tiles > 0 ? e.row_tiles * p_.num_kv_heads : 0;
    const int32_t least = __reduce_min_sync(0xffffffffu, items > 0 ? tiles : 0x7fffffff);
    const int32_t most = __reduce_max_sync(0xffffffffu, tiles);
    const uint32_t empty = __ballot_sync(0xffffffffu, is_one && items == 0);
    if (!guess) write_empty(empty);
    // Where each item gets parts of its own, a block's segment is found at once.
    const bool alike = least == most;
    const int32_t cluster = cluster_size(), num_blocks = this->num_blocks();
    int32_t parts = parts_of(alike ? most : tiles, cluster);
    const int32_t items_before = inclusive_sum(alike ? items : items * parts, lane_, p_.num_requests);
    const int32_t num_items = __shfl_sync(0xffffffffu, items_before, p_.num_requests - 1);
    if (alike) parts = parts_of_alike(parts, most, num_items, cluster, num_blocks);
    const int32_t each = alike ? parts : 1;
    if (each > 0 && num_items * each <= num_blocks) [[likely]]
      return find_part(e, items, parts, items_before * each, num_items * each, cluster);
    if (guess) return no_guess();
    // Segments and prefix sums are the block's from here on, and other warps may still write what they guess.
    if constexpr (Traits::kGuesses) sync_block();
    int32_t before = most * items_before;
    if (!alike) before = inclusive_sum(tiles * items, lane_);
    const detail::Chunks chunks =
        cut(__shfl_sync(0xffffffffu, before, p_.num_requests - 1), alike ? most : 0, num_items);
    if (warp_ == 0) {
      if (is_one) prefix_[lane_ + 1] = chunks.item > 0 ? items_before * chunks.item : before;
      if (lane_ == 0) {
        prefix_[0] = 0;
        shared_.chunks = chunks;
      }
    }
    if (lane_ == 0) shared_.sharing[warp_] = chunks.sharing;
    if (chunks.sharing == detail::Sharing::kWarp)
      sync_block();
    else
      __syncwarp();
    return chunks;
  }

  /// Parts that an item of so many tiles is cut into where blocks abound, whole clusters of them.
  __device__ __forceinline__ static int32_t parts_of(int32_t tiles, int32_t cluster) {
    const int32_t least_block = cluster == 1 ? Traits::kMinPart : Traits::kPartTiles / (cluster > 4 ? 2 : 1);
    const int32_t least = least_block * cluster;  // A power of two.
    // What a second cluster adds up goes through global memory, which takes longer than some tiles more.
    if (cluster > 1 && 2 * tiles <= 3 * least) return min(tiles, 1) * cluster;
    return min((tiles + least - 1) >> (31 - __clz(least)), kMaxDecodeBlocks) * cluster;
  }
  /// The same for items that are all alike: as many parts as there are blocks for, or 0 where that leaves more than a
  /// tenth of the blocks without work.
  __device__ __forceinline__ static int32_t parts_of_alike(int32_t wanted, int32_t tiles, int32_t num_items,
                                                           int32_t cluster, int32_t num_blocks) {
    if (wanted * num_items <= num_blocks) return wanted;
    if (num_items > num_blocks) return 0;
    const int32_t parts = detail::divide(num_blocks, num_items) & -cluster;
    if (parts == 0) return 0;
    const int64_t size = detail::divide_up(tiles, parts);
    return 10 * size * num_blocks <= int64_t{11} * num_items * tiles + 11 * num_blocks ? parts : 0;
  }

  /// Finds the block's part, each warp for itself. A lane holds a request's extent, items and parts an item; up
  /// to and with that request there are `chunks_to` of `total` chunks.
  __device__ __forceinline__ detail::Chunks find_part(const Extent& e, int32_t items, int32_t parts, int32_t chunks_to,
                                                      int32_t total, int32_t cluster) {
    const int32_t chunk = block();
    const detail::Chunks chunks = {total, 0, 1, detail::Sharing::kPart};
    const uint32_t owners = __ballot_sync(0xffffffffu, chunks_to > chunk);
    if (lane_ == __ffs(static_cast<int>(owners)) - 1) {
      const int32_t local = chunk - (chunks_to - items * parts);
      const int32_t item = detail::divide(local, parts);
      leave_part(e, lane_, item, local - item * parts, parts, cluster, chunks.sharing);
    }
    __syncwarp();
    return chunks;
  }

  /// The same where all requests are alike, as long as there is one item at most for each block or warp.
  __device__ __forceinline__ bool find_alike(int32_t tiles, int32_t items, detail::Chunks& chunks) {
    const auto num_blocks = this->num_blocks();
    const int32_t num_items = p_.num_requests * items;
    int32_t parts = parts_of_alike(parts_of(tiles, 1), tiles, num_items, 1, num_blocks);
    chunks = {num_items * parts, 0, 1, detail::Sharing::kPart};
    if (parts == 0) {
      const int32_t warps = Traits::kWarps * num_blocks;
      if (!Traits::kAlone || num_items > warps || 10 * warps > 11 * num_items) return false;
      parts = 1;
      chunks = {num_items, 0, 1, detail::Sharing::kItem};
    }
    if (lane_ == 0) {
      const bool alone = chunks.sharing == detail::Sharing::kItem;
      const int32_t chunk = alone ? item_of_warp(num_items) : block();
      if (chunk < chunks.total) {
        const int32_t index = detail::divide(chunk, parts), request = detail::divide(index, items);
        leave_part(extent(request), request, index - request * items, chunk - index * parts, parts, 1, chunks.sharing);
      } else {
        shared_.sharing[warp_] = chunks.sharing;
        own_segment().tile_begin = own_segment().tile_end = 0;
      }
    }
    __syncwarp();
    return true;
  }

  /// Neighbouring items share a multiprocessor, and all blocks of the launch have alike many; num_items = none.
  __device__ __forceinline__ int32_t item_of_warp(int32_t num_items) const {
    auto index = static_cast<int32_t>(blockIdx.x), grid = static_cast<int32_t>(gridDim.x);
    if constexpr (Traits::kShares) {
      const int32_t others = shared_.first_block / Traits::kTeams;
      index -= others;
      grid -= others;
    }
    const int32_t item = detail::divide(num_items * index, grid) + Traits::first_warp() + warp_;
    return item < detail::divide(num_items * (index + 1), grid) ? item : num_items;
  }

  __device__ __forceinline__ detail::Segment& own_segment() const {
    return shared_.segments[Traits::kOneSegment ? warp_ : 3 * warp_];
  }
  /// Tells this warp's lanes that its team works on one of the parts of a request's item.
  __device__ __forceinline__ void leave_part(const Extent& e, int32_t request, int32_t item, int32_t part,
                                             int32_t parts, int32_t cluster, detail::Sharing sharing) {
    const int32_t chunk = block();
    const int32_t size = max(detail::divide_up_quick(e.tiles(), parts), Traits::kWarps);
    detail::Segment s;
    s.tile_begin = e.tile_begin + part * size;
    s.tile_end = min(e.tile_end, s.tile_begin + size);
    s.next = 0;
    s.first_chunk = chunk - part;
    s.last_chunk = s.first_chunk + (cluster > 1 ? parts : detail::divide_up_quick(e.tiles(), size)) - 1;
    set_item(s, e, request, item);
    shared_.sharing[warp_] = sharing;
    own_segment() = s;
  }

  __device__ detail::Chunks scan_many() {
    // Requests that are all alike need no sums, and no search.
    const Extent model = extent(0);
    bool alike = model.tiles() > 0;
#pragma unroll 2
    for (auto r = static_cast<int32_t>(threadIdx.x); r < p_.num_requests; r += Traits::kThreads) {
      const Extent e = extent(r);
      alike = alike && e.tiles() == model.tiles() && e.row_tiles == model.row_tiles;
    }
    detail::Chunks chunks;
    if (all_of_block(alike) && find_alike(model.tiles(), model.row_tiles * p_.num_kv_heads, chunks)) return chunks;
    return scan_all();
  }

  __device__ detail::Chunks scan_all() {
    const int32_t per_thread = (p_.num_requests + Traits::kThreads - 1) / Traits::kThreads;
    const int32_t first = threadIdx.x * per_thread;
    const int32_t last = min(first + per_thread, p_.num_requests);
    int32_t sum = 0, num_items = 0, least = 0x7fffffff, most = 0;
    for (int32_t r = first; r < last; ++r) {
      const Extent e = extent(r);
      const int32_t tiles = max(e.tiles(), 0);
      const int32_t items = e.row_tiles * p_.num_kv_heads;
      if constexpr (!Traits::kShares) prefix_[r + 1] = tiles * items;
      sum += tiles * items;
      if (tiles * items == 0) continue;
      num_items += items;
      least = min(least, tiles), most = max(most, tiles);
    }
    const int32_t inclusive = inclusive_sum(sum, lane_);
    num_items = __reduce_add_sync(0xffffffffu, num_items);
    least = __reduce_min_sync(0xffffffffu, least), most = __reduce_max_sync(0xffffffffu, most);
    if (lane_ == 31) shared_.scan[warp_] = make_int4(inclusive, num_items, least, most);
    sync_block();
    int32_t running = inclusive - sum, total = 0;
    num_items = 0;
#pragma unroll
    for (int32_t w = 0; w < Traits::kWarps; ++w) {
      const int4 other = shared_.scan[w];
      if (w < warp_) running += other.x;
      total += other.x, num_items += other.y;
      least = min(least, other.z), most = max(most, other.w);
    }
    const detail::Chunks chunks = cut(total, least == most ? most : 0, num_items);
    for (int32_t r = first; r < last; ++r) {
      if constexpr (Traits::kShares) {
        // Teams of a block share the prefix: each writes what the others do, and nothing else.
        const Extent e = extent(r);
        running += max(e.tiles(), 0) * e.row_tiles * p_.num_kv_heads;
      } else {
        running += prefix_[r + 1];
      }
      prefix_[r + 1] = chunks.item > 0 ? running / most * chunks.item : running;
    }
    if (threadIdx.x == 0) {
      prefix_[0] = 0;
      shared_.chunks = chunks;
    }
    if (lane_ == 0) shared_.sharing[warp_] = chunks.sharing;
    sync_block();
    for (int32_t r = block(); r < p_.num_requests; r += num_blocks())
      if (prefix_[r + 1] == prefix_[r]) write_empty_rows(r);
    return chunks;
  }

  /// The segment at `position` or the first one after it that has tiles; without tiles: the block has none.
  __device__ detail::Segment next_segment(int32_t position) const {
    const detail::Chunks& chunks = shared_.chunks;
    const int32_t end = min((chunk() + 1) * chunks.size, chunks.total);
    detail::Segment s{};
    for (s.next = position; s.next < end && s.tile_begin >= s.tile_end;) s = find_segment(s.next, end);
    return s;
  }

  __device__ detail::Segment find_segment(int32_t position, int32_t end) const {
    int32_t low = 0, high = p_.num_requests;
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      (prefix_[middle] <= position ? low : high) = middle;
    }
    // Requests without work share their neighbour's prefix; the last of equals is the one with work.
    const Extent e = extent(low);
    const detail::Chunks& chunks = shared_.chunks;
    const int32_t positions = chunks.item > 0 ? chunks.item : e.tiles();
    const int32_t offset = position - prefix_[low];
    const int32_t item = detail::divide(offset, positions);
    detail::Segment s;
    set_item(s, e, low, item);
    const int32_t item_begin = prefix_[low] + item * positions;
    s.next = min(end, item_begin + positions);
    s.tile_begin = e.tile_begin + position - item_begin;
    s.tile_end = min(e.tile_end, s.tile_begin + (s.next - position));
    const int32_t chunk = this->chunk(), begin = chunk * chunks.size;
    const int32_t last = item_begin + e.tiles() - 1;
    s.first_chunk = chunk - detail::divide(max(begin - item_begin, 0) + chunks.size - 1, chunks.size);
    s.last_chunk = chunk + detail::divide(max(last - begin, 0), chunks.size);
    return s;
  }

  /// Names an item of a request and the keys that its rows see.
  __device__ __forceinline__ void set_item(detail::Segment& s, const Extent& e, int32_t request, int32_t item) const {
    s.request = request;
    s.head = e.row_tiles == 1 ? item : detail::divide(item, e.row_tiles);
    s.row_tile = item - s.head * e.row_tiles;
    s.q_begin = e.q_begin, s.q_len = e.q_len, s.kv_len = e.kv_len, s.global_len = e.global_len;
    s.first_page = e.first_key >> p_.page_shift;
    // What the oldest row sees, or a tree's every row, and what is inside the window of the newest row (tree rows lie
    // within the block).
    const int32_t own_keys = p_.draft_mask == DraftMask::kPacked   ? e.q_len
                             : p_.draft_mask == DraftMask::kCausal ? e.q_len - 1
                                                                   : 0;
    const int32_t seen = owned_keys(e.global_len - own_keys, p_.cp_rank, p_.cp_size, p_.cp_interleave);
    const int32_t gone =
        p_.window == 0 ? 0 : owned_keys(max(e.global_len - p_.window, 0), p_.cp_rank, p_.cp_size, p_.cp_interleave);
    s.full_begin = (gone + Traits::kTileTokens - 1) / Traits::kTileTokens;
    s.full_end = seen / Traits::kTileTokens;
  }

  /// The whole grid brings the table to L2, beside the lengths that must be known before entries are read.
  __device__ void prefetch_page_table() const {
    const int64_t byte = 128 * (static_cast<int64_t>(block()) * Traits::kThreads + threadIdx.x);
    if (byte < 4 * p_.num_requests * p_.page_table_stride)
      prefetch_l2(reinterpret_cast<const uint8_t*>(p_.page_table) + byte);
  }

  /// Of the first 32 requests, bit by bit.
  __device__ __forceinline__ void write_empty(uint32_t empty) {
    if (empty == 0) [[likely]]
      return;
    for (int32_t r = block(); r < p_.num_requests; r += num_blocks())
      if ((empty >> r & 1) != 0) write_empty_rows(r);
  }
  /// Rows that see no key have no work units: blocks write them together, before the real work.
  __device__ void write_empty_rows(int32_t request) {
    const int32_t num_q_heads = p_.num_kv_heads * p_.group;
    const int32_t begin = p_.q_offsets[request], count = p_.q_offsets[request + 1] - begin;
    for (int64_t i = 4 * threadIdx.x; i < static_cast<int64_t>(count) * num_q_heads * kHeadDim;
         i += 4 * Traits::kThreads)
      detail::store_out(p_.out, p_.out_dtype, static_cast<int64_t>(begin) * num_q_heads * kHeadDim + i,
                        make_float4(0, 0, 0, 0));
    if (p_.lse == nullptr) return;
    for (int32_t i = threadIdx.x; i < count * num_q_heads; i += Traits::kThreads)
      p_.lse[static_cast<int64_t>(begin) * num_q_heads + i] = -INFINITY;
  }

 private:
  /// What the lane guessed from.
  Lengths guessed_;
};

}  // namespace kvant::attn::cuda
