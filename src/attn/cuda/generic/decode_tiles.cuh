#pragma once

// The main loop: scores, softmax and values of one tile after another.

#include <cstdint>

#include "attn/cuda/common/v_operand.cuh"
#include "attn/cuda/generic/decode_pages.cuh"

namespace kvant::attn::cuda {

/// Tiles that a warp handles at once: `tile` and the ones after it, as far as they are not `dead` (bit by bit).
struct Round {
  int32_t tile;
  uint32_t dead;
};

/// The rounds whose copies are under way, oldest first. Without exact pages they are consecutive and need no memory.
template <bool kGaps, int kCount>
struct RoundQueue {
  uint32_t rounds[kCount];  // In one word each: registers are what four blocks a multiprocessor leave few of.
  __device__ __forceinline__ void push(Round round, int i) {
    rounds[i] = static_cast<uint32_t>(round.tile) << 2 | round.dead;
  }
  __device__ __forceinline__ void pop_and_push(Round round) {
#pragma unroll
    for (int i = 0; i + 1 < kCount; ++i) rounds[i] = rounds[i + 1];
    push(round, kCount - 1);
  }
  __device__ __forceinline__ Round front(int32_t) const {
    return {static_cast<int32_t>(rounds[0] >> 2), rounds[0] & 3};
  }
};
template <int kCount>
struct RoundQueue<false, kCount> {
  __device__ __forceinline__ void push(Round, int) {}
  __device__ __forceinline__ void pop_and_push(Round) {}
  __device__ __forceinline__ Round front(int32_t consecutive) const { return {consecutive, 0}; }
};

/// Attends to the tiles of a segment, each warp to its part of them.
template <class Traits>
class DecodeTiles : protected DecodePages<Traits> {
 protected:
  using Base = DecodePages<Traits>;
  using Base::acc_;
  using Base::alone;
  using Base::Base;
  using Base::batch_first_;
  using Base::bias;
  using Base::confirm;
  using Base::copy_queries;
  using Base::copy_round;
  using Base::copy_values;
  using Base::factor_;
  using Base::fetch_facts;
  using Base::fetch_scales;
  using Base::g_;
  using Base::guess_entries;
  using Base::has_one;
  using Base::is_plausible;
  using Base::kHeadDim;
  using Base::kLaneDims;
  using Base::kNoBatch;
  using Base::kRoundTiles;
  using Base::kRows;
  using Base::kRowTiles;
  using Base::kSteps;
  using Base::kTiles;
  using Base::lane_;
  using Base::lane_copies;
  using Base::lane_entry;
  using Base::leave_base_units;
  using Base::load_entries;
  using Base::mma;
  using Base::offset_;
  using Base::outgrown_;
  using Base::p_;
  using Base::pack;
  using Base::page_of;
  using Base::prefetch_exact;
  using Base::prefetch_tiles;
  using Base::q_;
  using Base::query_rows;
  using Base::reference;
  using Base::segment;
  using Base::set_reference;
  using Base::shared_;
  using Base::sharing;
  using Base::stages_;
  using Base::start_queries;
  using Base::sum_;
  using Base::sync_team;
  using Base::t_;
  using Base::warp_;
  using typename Base::KCodec;
  using typename Base::LaneCopies;
  using typename Base::VCodec;

  /// Products of 16 keys of each tile with all rows: c[r][n] holds keys g, g, g + 8, g + 8 by rows 2t, 2t + 1, 2t,
  /// 2t + 1.
  template <class Tile, int kCount>
  __device__ __forceinline__ void products(const Tile (&k)[kCount], float (&c)[kCount][kRowTiles][4]) const {
#pragma unroll
    for (int r = 0; r < kCount; ++r)
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[r][n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kCount][4];
#pragma unroll
      for (int r = 0; r < kCount; ++r) k[r].fragment(step, a[r]);
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        uint2 q;
        if constexpr (Traits::kSharedRows)
          q = load_shared_8(q_lane_ + 256 * (kSteps * n + step));
        else
          q = {q_[n][step][0], q_[n][step][1]};
#pragma unroll
        for (int r = 0; r < kCount; ++r) mma(c[r][n], a[r], q.x, q.y);
      }
    }
  }

  /// Which products of kCount tiles from `tile` on count: bit 4 * (kRowTiles * r + n) + i for c[r][n][i].
  template <int kCount>
  __device__ __forceinline__ uint32_t visible(const detail::Segment& s, int32_t tile) const {
    if (s.q_len == 1 && p_.window == 0 && p_.draft_mask == DraftMask::kCausal && p_.positions == nullptr) [[likely]]
      return held<kCount>(s, tile);
    const auto local = [&](int32_t length) { return owned_keys(length, p_.cp_rank, p_.cp_size, p_.cp_interleave); };
    const int32_t block = s.global_len - s.q_len;
    uint32_t bits = 0;
#pragma unroll 1
    for (int j = 0; j < 2 * kRowTiles; ++j) {
      const int32_t row = s.row_tile * kRows + 8 * (j / 2) + 2 * t_ + j % 2;
      const int32_t i = detail::divide(row, p_.group);
      if (i >= s.q_len) continue;
      // Keys [first, last) are visible, and those of a packed mask.
      const int32_t position = p_.positions == nullptr ? block + i : p_.positions[s.q_begin + i];
      const int32_t first = p_.window > 0 ? local(max(position - p_.window + 1, 0)) : 0;
      const bool packed = p_.draft_mask == DraftMask::kPacked;
      const int32_t last = local(packed ? block : p_.draft_mask == DraftMask::kCausal ? block + i + 1 : s.global_len);
#pragma unroll
      for (int k = 0; k < 2 * kCount; ++k) {
        const int32_t key = tile * Traits::kTileTokens + 8 * k + g_;
        bool seen = key < last;
        if (packed && !seen && key < s.kv_len) {
          const int32_t bit = global_key(key, p_.cp_rank, p_.cp_size, p_.cp_interleave) - block;
          seen = (p_.mask[static_cast<int64_t>(s.q_begin + i) * p_.mask_row_words + bit / 32] >> bit % 32 & 1) != 0;
        }
        if (seen && key >= first) bits |= 1u << (4 * (kRowTiles * (k / 2) + j / 2) + 2 * (k % 2) + j % 2);
      }
    }
    return bits;
  }
  /// The same for one new token, which sees all keys that there are.
  template <int kCount>
  __device__ __forceinline__ uint32_t held(const detail::Segment& s, int32_t tile) const {
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < 2 * kCount; ++k) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n)
        if (tile * Traits::kTileTokens + 8 * k + g_ < s.kv_len)
          bits |= 3u << (4 * (kRowTiles * (k / 2) + n) + 2 * (k % 2));
    }
    return bits;
  }
  template <int kCount>
  __device__ __forceinline__ static void hide(uint32_t visible, float (&c)[kCount][kRowTiles][4]) {
#pragma unroll
    for (int i = 0; i < 4 * kRowTiles * kCount; ++i)
      if ((visible >> i & 1) == 0) c[i / (4 * kRowTiles)][i / 4 % kRowTiles][i % 4] = -INFINITY;
  }

  /// Products become weights: exp2 of scores less the reference maximum, which moves when a score has outgrown it.
  template <int kCount>
  __device__ __forceinline__ void softmax(float (&c)[kCount][kRowTiles][4]) {
    if (Traits::kCaps && p_.soft_cap > 0.0f) [[unlikely]]
      cap(c);
    bool outgrown = false;
#pragma unroll
    for (int r = 0; r < kCount; ++r)
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (Traits::kSharedRows)
            outgrown |= fmaf(c[r][n][i], factor_[n][i & 1], offset_[n][i & 1]) > detail::kRescaleSlack;
          else
            outgrown |= c[r][n][i] > outgrown_[n][i & 1];
        }
    if (__any_sync(0xffffffffu, outgrown)) [[unlikely]]
      rescale(c);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          c[r][n][i] = exp2_approx(fmaf(c[r][n][i], factor_[n][i & 1], offset_[n][i & 1]));
          sum_[n][i & 1] += c[r][n][i];
        }
      }
    }
  }
  /// Caps scores; they stay in units of products.
  template <int kCount>
  __device__ __forceinline__ void cap(float (&c)[kCount][kRowTiles][4]) const {
    const float top = p_.soft_cap * kLog2OfE;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float inverse = __fdividef(1.0f, factor_[n][i & 1]);
#pragma unroll
        for (int r = 0; r < kCount; ++r) {
          const float score = fmaf(c[r][n][i], factor_[n][i & 1], bias(n, i & 1));
          // What is masked stays so.
          if (c[r][n][i] != -INFINITY)
            c[r][n][i] = (top * tanh_approx(__fdividef(score, top)) - bias(n, i & 1)) * inverse;
        }
      }
    }
  }
  template <int kCount>
  __device__ __forceinline__ void rescale(const float (&c)[kCount][kRowTiles][4]) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = fmaxf(c[0][n][j], c[0][n][j + 2]);
#pragma unroll
        for (int r = 1; r < kCount; ++r) top = fmaxf(top, fmaxf(c[r][n][j], c[r][n][j + 2]));
#pragma unroll
        for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        const float old = reference(n, j);
        const float moved = fmaxf(old, fmaf(top, factor_[n][j], bias(n, j)));
        const float factor = exp2_approx(old - moved);
        set_reference(n, j, moved);
        sum_[n][j] *= factor;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          acc_[n][i][j] *= factor;
          acc_[n][i][j + 2] *= factor;
        }
      }
    }
  }

  template <class Tile>
  __device__ __forceinline__ void accumulate(const Tile& v, const float (&c)[kRowTiles][4]) {
    uint32_t b[kRowTiles][2];
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      b[n][0] = transpose_8x8(pack(c[n][0], c[n][1]));
      b[n][1] = transpose_8x8(pack(c[n][2], c[n][3]));
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      uint32_t a[4];
      v.fragment(i, a);
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) mma(acc_[n][i], a, b[n][0], b[n][1]);
    }
  }

  struct Range {
    int32_t first, last;
  };
  __device__ __forceinline__ Range warp_range(const detail::Segment& s) const {
    const int32_t count = (s.tile_end - s.tile_begin + kRoundTiles - 1) / kRoundTiles;
    const int32_t first = alone() ? 0 : count * warp_ / Traits::kWarps;
    const int32_t last = alone() ? count : count * (warp_ + 1) / Traits::kWarps;
    return {s.tile_begin + kRoundTiles * first,
            static_cast<int32_t>(opaque(min(s.tile_end, s.tile_begin + kRoundTiles * last)))};
  }

  __device__ void attend(int32_t index) {
    const detail::Segment& s = segment(index);
    if constexpr (Traits::kExact) num_listed_ = 0;
    attend_base(index, warp_range(s));
    if constexpr (Traits::kExact) attend_exact(s);
  }

  /// Before the kernels before this one have ended: guesses the pages of the first segment, finds where from and to
  /// they and the queries are copied, and brings the first to L2. False where that is no use.
  __device__ __forceinline__ bool look_ahead() {
    const detail::Segment& s = segment(0);
    const Range range = warp_range(s);
    if (!is_plausible(s) || !guess_entries(s, range.first)) return false;
    prefetch_tiles(s, range.first, range.last);
    if constexpr (!Traits::kExact) start_copies(0, true);
    guessed_rows_ = query_rows(s);
    return true;
  }

  /// Starts on the first segment, which was guessed; false where it is another, and nothing is under way.
  __device__ __forceinline__ bool start_by_guess() {
    const auto facts = fetch_facts(segment(0));
    if constexpr (!Traits::kExact) {
      copy_queries(guessed_rows_, to_);
      commit_copies();
      copy_next(0, from_);
      commit_copies();
    }
    is_begun_ = confirm(facts);
    if (is_begun_) return true;
    if constexpr (!Traits::kExact) {
      wait_copies<0>();
      __syncwarp();
    }
    return false;
  }

  /// Starts to copy this warp's tiles of a segment.
  __device__ __forceinline__ void start_copies(int32_t index, bool has_entries = false) {
    const detail::Segment& s = segment(index);
    const Range range = warp_range(s);
    copy_index_ = index;
    next_ = range.first, copy_last_ = range.last;
    // Addresses are found while entries are waited for.
    if (!has_entries) {
      batch_first_ = kNoBatch;
      if (next_ < copy_last_) load_entries(s, next_);
    }
    copies_ = lane_copies(s.head);
  }

  /// The next round from `tile` on that has base pages, or one at or beyond `last`, and the lane's page.
  __device__ __forceinline__ Round next_round(const detail::Segment& s, int32_t tile, int32_t last, int32_t& entry) {
    if constexpr (!Traits::kExact) {
      if (tile < last) entry = lane_entry(s, tile);
      return {tile, 0};
    } else {
      for (; tile < last; tile += kRoundTiles) {
        entry = lane_entry(s, tile);
        const uint32_t exact = __ballot_sync(0xffffffffu, is_exact_page(entry));
        if (exact == 0) return {tile, 0};
        if (is_exact_page(entry)) prefetch_exact(s, tile, entry);
        note_exact(tile, last, exact);
        if (exact == 0xffffffffu) continue;
        // A dead tile is read from its neighbour's page.
        const int32_t other = __shfl_sync(0xffffffffu, entry, __ffs(~exact) - 1);
        if (is_exact_page(entry)) entry = other;
        return {tile, (exact & 1) | (exact >> 31) << 1};
      }
      return {tile, 0};
    }
  }

  /// Adds a round's tiles of exact pages to the warp's list.
  __device__ __forceinline__ void note_exact(int32_t tile, int32_t last, uint32_t exact) {
#pragma unroll
    for (int r = 0; r < kRoundTiles; ++r) {
      if ((exact >> 32 / kRoundTiles * r & 1) == 0 || tile + r >= last) continue;
      if (lane_ == num_listed_) listed_ = tile + r;
      ++num_listed_;
    }
  }

  /// Copies the warp's next round to stage `to`; returns which it is. Where the segment has no more rounds the next
  /// segment's follow, so that stages hold rounds without gaps until that one is exhausted, too.
  __device__ __forceinline__ Round copy_next(int32_t index, uint32_t to) {
    if constexpr (!Traits::kExact) {
      if (next_ >= copy_last_ && copy_index_ == index && !has_one(sharing())) start_copies(index == 2 ? 0 : index + 1);
    }
    int32_t entry = 0;
    const Round round = next_round(segment(copy_index_), next_, copy_last_, entry);
    next_ = round.tile;
    if (round.tile < copy_last_) {
      copy_round(copies_, to, round.tile, entry);
      if constexpr (!Traits::kHalves) next_ += kRoundTiles;
    }
    return round;
  }
  /// The values of the keys that copy_next has copied, where stages hold halves.
  __device__ __forceinline__ void copy_next_values(uint32_t to) {
    if (next_ >= copy_last_) return;
    copy_values(copies_, to, next_, lane_entry(segment(copy_index_), next_));
    next_ += kRoundTiles;
  }
  /// What comes next, the i-th in an empty ring.
  __device__ __forceinline__ Round copy_ith(int i, int32_t index, uint32_t to) {
    if (!Traits::kHalves || i % 2 == 0) return copy_next(index, to);
    copy_next_values(to);
    return {};
  }

  /// Pages of the base pool, through a ring of stages. Exact ones are a second loop, so that they cost the first no
  /// registers.
  __device__ __forceinline__ void attend_base(int32_t index, const Range& range) {
    const detail::Segment& s = segment(index);
    RoundQueue<Traits::kExact, kAhead> under_way;
    const auto scales = fetch_scales(s);
    constexpr int kUnrolled = Traits::kExact ? kAhead : 1;  // Only a queue in registers needs it.
    // Rounds that every warp asks for before its queries are there. One keeps the memory busy; with more, none would
    // arrive before all others' had.
    constexpr int kFirst = Traits::kGuesses ? 1 : kAhead;
    // Rounds that were copied while the last segment was at work follow each other from stage from_ on.
    int32_t ahead = 0;
    if (!Traits::kGuesses || Traits::kExact || !is_begun_) {
      if (copy_index_ == index)
        ahead = (next_ - range.first) / kRoundTiles * (Traits::kHalves ? 2 : 1);
      else
        start_copies(index, is_begun_);
      // Asked for before the tiles, which are many more bytes.
      copy_queries(query_rows(s), to_);
      commit_copies();
#pragma unroll kUnrolled
      for (int i = 0; i < kFirst; ++i) {
        if (i >= ahead) under_way.push(copy_ith(i, index, stage_after(from_, i)), i);
        commit_copies();
      }
    }
    wait_copies<kFirst>();
    start_queries(s, to_, scales);
#pragma unroll kUnrolled
    for (int i = kFirst; i < kAhead; ++i) {
      if (i >= ahead) under_way.push(copy_ith(i, index, stage_after(from_, i)), i);
      commit_copies();
    }
    const LaneRead k_read = KTile<KCodec, kHeadDim>::lane_read(g_, t_);
    const LaneRead v_read = VTile<VCodec, kHeadDim>::lane_read(g_, t_);
    // Rounds whose keys all rows see and that are this warp's alone.
    const int32_t last = range.last;
    const Range full = {s.full_begin, min(s.full_end, last)};
    for (Round now = under_way.front(range.first); now.tile < last; now = under_way.front(now.tile + kRoundTiles)) {
      wait_copies<kAhead - 1>();
      __syncwarp();
      under_way.pop_and_push(copy_next(index, to_));
      commit_copies();

      if (Traits::kSingles && now.tile + 1 >= last)
        attend_round<1>(s, now, last, full, k_read, v_read);
      else
        attend_round<kRoundTiles>(s, now, last, full, k_read, v_read);
      turn_ring();
    }
  }

  /// The first kCount tiles of a round.
  template <int kCount>
  __device__ __forceinline__ void attend_round(const detail::Segment& s, Round now, int32_t last, const Range& full,
                                               const LaneRead& k_read, const LaneRead& v_read) {
    float c[kCount][kRowTiles][4];
    KTile<KCodec, kHeadDim> k[kCount];
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const uint32_t k_rows = from_ + r * Traits::kTileBytes;
      k[r].load(k_rows, k_rows + Traits::kKScales, k_read);
    }
    products(k, c);
    const bool is_full = now.tile >= full.first && now.tile + kCount <= full.last;
    const bool partly = !is_full || now.dead != 0;
    if (partly) [[unlikely]]
      hide(is_full ? live_bits(now, last) : live_bits(now, last) & visible<kCount>(s, now.tile), c);
    if constexpr (Traits::kHalves) {
      softmax(c);
      turn_ring();
      wait_copies<kAhead - 1>();
      __syncwarp();
      copy_next_values(to_);
      commit_copies();
    }
    if (partly) [[unlikely]]
      clear_round(s, now, last, from_);
    if constexpr (!Traits::kHalves) softmax(c);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const uint32_t v_rows = from_ + r * Traits::kTileBytes;
      VTile<VCodec, kHeadDim> v;
      v.load(v_rows + Traits::kStageVRows, v_rows + Traits::kVScales, v_read);
      accumulate(v, c[r]);
    }
  }

  __device__ __forceinline__ void turn_ring() {
    to_ = from_;
    from_ = stage_after(from_, 1);
  }

  __device__ __forceinline__ uint32_t stage_after(uint32_t stage, int count) const {
    const uint32_t after = stage + count * Traits::kStageBytes;
    constexpr uint32_t kRing = Traits::kStages * Traits::kStageBytes;
    return after >= stages_ + kRing ? after - kRing : after;
  }

  /// Which products of a round are not of dead tiles, as in `visible`.
  __device__ __forceinline__ static uint32_t live_bits(Round round, int32_t last) {
    uint32_t bits = 0xffffffffu;
#pragma unroll
    for (int r = 0; r < kRoundTiles; ++r)
      if (is_dead(round, r, last)) bits &= ~(((1u << 4 * kRowTiles) - 1) << 4 * kRowTiles * r);
    return bits;
  }
  /// Slots past the length may hold anything, NaN included, and 0 * NaN is NaN, so their values become zeros in the
  /// stage.
  __device__ __forceinline__ void clear_round(const detail::Segment& s, Round round, int32_t last,
                                              uint32_t stage) const {
#pragma unroll
    for (int r = 0; r < kRoundTiles; ++r) {
      const int32_t live = is_dead(round, r, last) ? 0 : s.kv_len - (round.tile + r) * Traits::kTileTokens;
      if (live < Traits::kTileTokens)
        VTile<VCodec, kHeadDim>::clear_rows(stage + r * Traits::kTileBytes + Traits::kStageVRows,
                                            stage + r * Traits::kTileBytes + Traits::kVScales, max(live, 0), lane_);
    }
    __syncwarp();
  }
  __device__ __forceinline__ static bool is_dead(Round round, int r, int32_t last) {
    return round.tile + r >= last || (round.dead >> r & 1) != 0;
  }

  /// Which tiles of exact pages are left to this warp: those of its range from `tile` on, then lanes' `mine` from
  /// `index` on, which ends with -1.
  struct ExactCursor {
    int32_t tile, last, mine, index;
  };
  /// Tiles of exact pages mostly lie side by side, so the warps of a team take turns at what they all have listed. A
  /// warp with more of them than a list holds keeps them all.
  __device__ __forceinline__ ExactCursor share_exact(const detail::Segment& s) const {
    const Range range = warp_range(s);
    const bool listed = num_listed_ <= 32;
    ExactCursor cursor = {listed ? range.last : range.first, range.last, -1, 0};
    __syncwarp();  // The ring has been read.
    if (lane_ < num_listed_) store_shared_4(stages_ + 4 * lane_, static_cast<uint32_t>(listed_));
    if (lane_ == 0) store_shared_4(stages_ + 4 * 32, listed ? static_cast<uint32_t>(num_listed_) : 0);
    sync_team();
    int32_t index = alone() ? lane_ : warp_ + Traits::kWarps * lane_;
    for (int32_t w = alone() ? warp_ : 0; w < (alone() ? warp_ + 1 : Traits::kWarps); ++w) {
      const uint32_t list = shared_address(shared_.stages[w]);
      const auto count = static_cast<int32_t>(load_shared_4(list + 4 * 32));
      if (index >= 0 && index < count) cursor.mine = static_cast<int32_t>(load_shared_4(list + 4 * index));
      index -= count;
    }
    sync_team();
    return cursor;
  }
  __device__ __forceinline__ int32_t exact_entry(const detail::Segment& s, int32_t tile) const {
    return __ldg(&p_.page_table[s.request * p_.page_table_stride + (16 * tile >> p_.page_shift)]);
  }
  /// The next tile, or -1.
  __device__ __forceinline__ int32_t next_exact(const detail::Segment& s, ExactCursor& cursor) const {
    while (cursor.tile < cursor.last) {
      const int32_t tile = cursor.tile++;
      if (is_exact_page(exact_entry(s, tile))) return tile;
    }
    return cursor.index < 32 ? __shfl_sync(0xffffffffu, cursor.mine, cursor.index++) : -1;
  }

  /// Copies a tile of an exact page to the warp's ring.
  __device__ __forceinline__ void copy_exact(const detail::Segment& s, int32_t tile) const {
    using Rows = typename Traits::ExactRows;
    const PoolParams& pool = p_.exact;
    const uint8_t* page = page_of(pool, exact_entry(s, tile));
    const uint8_t* k_rows = page + (pool.k.data + pool.k.data_head * s.head);
    const uint8_t* v_rows = page + (pool.v.data + pool.v.data_head * s.head);
    const int32_t in_page = (1 << p_.page_shift) - 1;
#pragma unroll 2
    for (int i = lane_; i < 16 * Rows::kChunks; i += 32) {
      const int row = i / Rows::kChunks, chunk = i % Rows::kChunks;
      const uint32_t to = stages_ + Rows::offset(row, chunk);
      const int32_t token = (tile * Traits::kTileTokens + row) & in_page;
      copy_async_16(to, k_rows + token * pool.k.data_token + 16 * chunk);
      copy_async_16(to + Rows::kBytes, v_rows + token * pool.v.data_token + 16 * chunk);
    }
    commit_copies();
  }

  __device__ void attend_exact(const detail::Segment& s) {
    ExactCursor cursor = share_exact(s);
    int32_t tile = next_exact(s, cursor);
    if (tile < 0) return;
    leave_base_units();
    for (; tile >= 0; tile = next_exact(s, cursor)) {
      __syncwarp();  // The ring has been read.
      copy_exact(s, tile);
      wait_copies<0>();
      __syncwarp();
      const uint32_t v_rows = stages_ + Traits::ExactRows::kBytes;
      const ExactKTile<kLaneDims, kHeadDim> k[1] = {{stages_, g_, t_}};
      float c[1][kRowTiles][4];
      products(k, c);
      if (tile < s.full_begin || tile >= s.full_end) {
        hide(visible<1>(s, tile), c);
        VTile<F16, kHeadDim>::clear_rows(v_rows, 0, min(s.kv_len - tile * Traits::kTileTokens, Traits::kTileTokens),
                                         lane_);
        __syncwarp();
      }
      softmax(c);
      VTile<F16, kHeadDim> v;
      v.load(v_rows, 0, VTile<F16, kHeadDim>::lane_read(g_, t_));
      accumulate(v, c[0]);
    }
  }

  /// One stage holds sums between segments while the others hold what was copied ahead.
  static constexpr int kAhead = Traits::kStages - 1;
  static_assert(!Traits::kHalves || kAhead % 2 == 0, "the next of two halves is known when the program is compiled");
  LaneCopies copies_;
  const uint32_t q_lane_ = shared_address(&shared_.q[0][0][Traits::kSharedRows ? lane_ : 0]);
  int32_t copy_index_ = -1;  ///< Of the segment whose tiles are copied, this one or the following.
  int32_t next_ = 0, copy_last_ = 0;
  /// Whether the only segment was guessed: its first entries are known, and unless pages may be exact, its first copies
  /// under way.
  bool is_begun_ = false;
  typename Base::QueryRows guessed_rows_;
  /// The tiles of exact pages that the warp has come upon; lane i has the i-th.
  int32_t listed_ = 0, num_listed_ = 0;
  uint32_t from_ = stages_, to_ = stages_ + kAhead * Traits::kStageBytes;
};

}  // namespace kvant::attn::cuda
