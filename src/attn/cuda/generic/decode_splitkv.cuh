#pragma once

// Decode and verify attention over paged, quantised KV: split-KV on mma.sync, SM80 and later.
//   q [tokens, q heads, Dk], pages in any of the layout's formats, out [tokens, q heads, Dv], fp32 inside.
// Launch: a fixed grid of 128-thread blocks. Blocks read the lengths on the device, each takes an equal contiguous
// share of all 16-token tiles, and the last block to finish an item (request, KV head, row tile) merges its parts in
// order. Limits: head dims 64, 128, 256; Dk = Dv; up to 8 * kRowTiles query rows an item, more rows are more items.

#include <cstdint>
#include <type_traits>

#include "attn/cuda/common/codecs.cuh"
#include "attn/cuda/common/ptx.cuh"
#include "attn/cuda/generic/decode_splitkv.h"

namespace kvant::attn::cuda {

namespace detail {

/// One (request, KV head, row tile) and the part of its keys that a block works on.
struct Segment {
  int32_t request, head, row_tile;
  int32_t q_begin, q_len, kv_len;  ///< kv_len counts this rank's keys.
  int32_t global_len;
  int32_t tile_begin, tile_end;
  int32_t full_begin, full_end;  ///< Tiles whose keys every row sees.
};

}  // namespace detail

// ---- Traits --------------------------------------------------------------------------------------------------------

template <class KCodec_, class VCodec_, int kHeadDim_, int kRowTiles_, bool kExact_>
struct DecodeTraits {
  using KCodec = KCodec_;
  using VCodec = VCodec_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowTiles = kRowTiles_;  ///< Eight query rows each.
  static constexpr bool kExact = kExact_;       ///< Entries may name the exact pool.
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kTileTokens = 16;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kTiles = kHeadDim / 16;
  static constexpr bool kBf16Math = KCodec::kBf16Math;
  static constexpr int kRowStride = kHeadDim + 4;  ///< Of the warps' partial outputs in shared memory, in floats.
  /// Fewest tiles a block takes, so that little work is not cut into parts that cost more to merge.
  static constexpr int kMinShare = kWarps;

  using KRows = TileRows<kHeadDim * KCodec::kBits / 8>;
  using VRows = TileRows<kHeadDim * VCodec::kBits / 8>;
  static constexpr int kKScaleBytes = KCodec::kScales ? kHeadDim : 0;  ///< 16 tokens, head_dim / 16 blocks.
  static constexpr int kVScaleBytes = VCodec::kScales ? kHeadDim : 0;
  static constexpr int kKScales = KRows::kBytes;
  static constexpr int kVRows = kKScales + kKScaleBytes;
  static constexpr int kVScales = kVRows + VRows::kBytes;
  static constexpr int kStageBytes = kVScales + kVScaleBytes;
  /// Tiles of a warp in shared memory: at least 16 KiB under way per scheduler hides the memory's latency.
  static constexpr int kStages = kStageBytes >= 8192 ? 2 : kStageBytes >= 4096 ? 3 : 4;
  static constexpr int kMinBlocks = kRowTiles > 1 || kHeadDim > 128 ? 2 : kStageBytes >= 8192 ? 3 : 4;

  struct Partials {
    float out[kWarps][kRows][kRowStride];
  };
  struct SharedStorage {
    union {
      uint8_t stages[kWarps][kStages][kStageBytes];
      Partials partials;  ///< Once a segment's tiles have been read.
    };
    float2 state[kWarps][kRows];
    detail::Segment segment;  ///< What the block works on; registers are dearer than shared memory.
    int32_t scan[kWarps];
    int32_t is_last;
  };
  static_assert(kHeadDim % 64 == 0, "lanes hold whole chunks of 64 channels");
  static_assert(KCodec::kBf16Math == VCodec::kBf16Math, "P and Q share their operand type with V and K");
};

namespace detail {

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;
/// Scores may exceed the running reference by this much (a factor 2^8) before it moves: P stays within f16.
inline constexpr float kRescaleSlack = 8.0f;
/// Stands for "no score yet": below every real score, and finite, so that differences of it are numbers.
inline constexpr float kNoScore = -1e30f;

/// Four adjacent elements.
__device__ __forceinline__ float4 load_q(const void* q, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return *reinterpret_cast<const float4*>(static_cast<const float*>(q) + index);
  const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(q) + index);
  if (dtype == DType::kBf16) {
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
                       __uint_as_float(raw.y & 0xffff0000u));
  }
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
  return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ void store_out(void* out, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(out)[index] = value; return;
    case DType::kF16: static_cast<__half*>(out)[index] = __float2half_rn(value); return;
    case DType::kBf16: static_cast<__nv_bfloat16*>(out)[index] = __float2bfloat16_rn(value); return;
  }
}

/// Keys of a request that a context-parallel rank holds: keys j with (j / interleave) % size == rank.
__device__ __forceinline__ int32_t local_length(int32_t length, int32_t rank, int32_t size, int32_t interleave) {
  if (size == 1) return length;
  const int32_t cycle = size * interleave;
  const int32_t rest = length - length / cycle * cycle - rank * interleave;
  return length / cycle * interleave + min(max(rest, 0), interleave);
}
__device__ __forceinline__ int32_t global_position(int32_t local, int32_t rank, int32_t size, int32_t interleave) {
  if (size == 1) return local;
  return (local / interleave * size + rank) * interleave + local % interleave;
}

}  // namespace detail

/// The tiles whose copies are under way, oldest first. Without exact pages they are consecutive and need no memory.
template <bool kGaps, int kCount>
struct TileQueue {
  int32_t tiles[kCount];
  __device__ __forceinline__ void push(int32_t tile, int i) { tiles[i] = tile; }
  __device__ __forceinline__ void pop_and_push(int32_t tile) {
#pragma unroll
    for (int i = 0; i + 1 < kCount; ++i) tiles[i] = tiles[i + 1];
    tiles[kCount - 1] = tile;
  }
  __device__ __forceinline__ int32_t front(int32_t) const { return tiles[0]; }
};
template <int kCount>
struct TileQueue<false, kCount> {
  __device__ __forceinline__ void push(int32_t, int) {}
  __device__ __forceinline__ void pop_and_push(int32_t) {}
  __device__ __forceinline__ int32_t front(int32_t consecutive) const { return consecutive; }
};

// ---- Device code ---------------------------------------------------------------------------------------------------

template <class Traits>
class DecodeBlock {
 public:
  using SharedStorage = typename Traits::SharedStorage;
  using KCodec = typename Traits::KCodec;
  using VCodec = typename Traits::VCodec;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kRowTiles = Traits::kRowTiles;
  static constexpr int kRows = Traits::kRows;
  static constexpr int kSteps = Traits::kSteps;
  static constexpr int kTiles = Traits::kTiles;
  static constexpr int kLaneDims = KTile<KCodec, kHeadDim>::kLaneDims;
  using KRows = typename Traits::KRows;
  using VRows = typename Traits::VRows;

  __device__ DecodeBlock(const DecodeParams& params, SharedStorage& shared, int32_t* prefix)
      : p_(params),
        shared_(shared),
        prefix_(prefix),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        g_(lane_ / 4),
        t_(lane_ % 4),
        stages_(opaque(shared_address(shared.stages[threadIdx.x / 32]))) {}

  __device__ void run() {
    scan_lengths();
    const int32_t total = prefix_[p_.num_requests];
    const int32_t share =
        max((total + static_cast<int32_t>(gridDim.x) - 1) / static_cast<int32_t>(gridDim.x), Traits::kMinShare);
    write_empty_rows();
    int32_t position = min(static_cast<int32_t>(blockIdx.x) * share, total);
    const int32_t end = min(position + share, total);
    const int32_t begin = position;
    while (position < end) {
      if (threadIdx.x == 0) shared_.segment = find_segment(position, end);
      __syncthreads();
      const detail::Segment& segment = shared_.segment;
      attend(segment);
      finish(segment, position, begin, share);
      position += segment.tile_end - segment.tile_begin;
      __syncthreads();
    }
  }

 private:
  // -- Work of a request: tiles of 16 keys that any of its rows may see, times KV heads and row tiles.

  struct Extent {
    int32_t q_begin, q_len, global_len, kv_len, row_tiles, tile_begin, tile_end;
    __device__ int32_t tiles() const { return tile_end - tile_begin; }
  };

  __device__ Extent extent(int32_t request) const {
    Extent e;
    e.q_begin = p_.q_offsets[request];
    e.q_len = p_.q_offsets[request + 1] - e.q_begin;
    e.global_len = e.q_len > 0 ? p_.kv_lens[request] : 0;
    e.kv_len = detail::local_length(e.global_len, p_.cp_rank, p_.cp_size, p_.cp_interleave);
    e.row_tiles = (e.q_len * p_.group + kRows - 1) / kRows;
    const int32_t oldest = p_.window > 0 ? max(e.global_len - e.q_len - p_.window + 1, 0) : 0;
    e.tile_begin = detail::local_length(oldest, p_.cp_rank, p_.cp_size, p_.cp_interleave) / Traits::kTileTokens;
    e.tile_end = (e.kv_len + Traits::kTileTokens - 1) / Traits::kTileTokens;
    return e;
  }

  /// prefix_[r] = work units before request r, for one block: every block computes the same.
  __device__ void scan_lengths() {
    const int32_t per_thread = (p_.num_requests + Traits::kThreads - 1) / Traits::kThreads;
    const int32_t first = threadIdx.x * per_thread;
    const int32_t last = min(first + per_thread, p_.num_requests);
    int32_t sum = 0;
    for (int32_t r = first; r < last; ++r) {
      const Extent e = extent(r);
      const int32_t work = max(e.tiles(), 0) * e.row_tiles * p_.num_kv_heads;
      prefix_[r + 1] = work;
      sum += work;
    }
    int32_t inclusive = sum;
#pragma unroll
    for (int32_t delta = 1; delta < 32; delta *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, inclusive, delta);
      if (lane_ >= delta) inclusive += other;
    }
    if (lane_ == 31) shared_.scan[warp_] = inclusive;
    __syncthreads();
    int32_t running = inclusive - sum;
    for (int32_t w = 0; w < warp_; ++w) running += shared_.scan[w];
    for (int32_t r = first; r < last; ++r) {
      running += prefix_[r + 1];
      prefix_[r + 1] = running;
    }
    if (threadIdx.x == 0) prefix_[0] = 0;
    __syncthreads();
  }

  __device__ detail::Segment find_segment(int32_t position, int32_t end) const {
    int32_t low = 0, high = p_.num_requests;
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      (prefix_[middle] <= position ? low : high) = middle;
    }
    // Requests without work share their neighbour's prefix; the last of equals is the one with work.
    const Extent e = extent(low);
    const int32_t offset = position - prefix_[low];
    const int32_t item = offset / e.tiles();
    detail::Segment s;
    s.request = low;
    s.head = item / e.row_tiles;
    s.row_tile = item % e.row_tiles;
    s.q_begin = e.q_begin, s.q_len = e.q_len, s.kv_len = e.kv_len, s.global_len = e.global_len;
    s.tile_begin = e.tile_begin + offset % e.tiles();
    s.tile_end = min(e.tile_end, s.tile_begin + (end - position));
    // Before the draft block, and inside the window of the newest row (tree rows lie within the block).
    const int32_t seen = detail::local_length(e.global_len - e.q_len, p_.cp_rank, p_.cp_size, p_.cp_interleave);
    const int32_t gone = p_.window == 0 ? 0
                                        : detail::local_length(max(e.global_len - p_.window, 0), p_.cp_rank, p_.cp_size,
                                                               p_.cp_interleave);
    s.full_begin = (gone + Traits::kTileTokens - 1) / Traits::kTileTokens;
    s.full_end = seen / Traits::kTileTokens;
    return s;
  }

  /// Rows that see no key have no work units: blocks write them together, before the real work.
  __device__ void write_empty_rows() {
    const int32_t num_q_heads = p_.num_kv_heads * p_.group;
    for (int32_t r = blockIdx.x; r < p_.num_requests; r += gridDim.x) {
      if (prefix_[r + 1] != prefix_[r]) continue;
      const int32_t begin = p_.q_offsets[r], count = p_.q_offsets[r + 1] - begin;
      for (int64_t i = threadIdx.x; i < static_cast<int64_t>(count) * num_q_heads * kHeadDim; i += Traits::kThreads)
        detail::store_out(p_.out, p_.out_dtype, static_cast<int64_t>(begin) * num_q_heads * kHeadDim + i, 0.0f);
      if (p_.lse == nullptr) continue;
      for (int32_t i = threadIdx.x; i < count * num_q_heads; i += Traits::kThreads)
        p_.lse[static_cast<int64_t>(begin) * num_q_heads + i] = -INFINITY;
    }
  }

  // -- Query rows. Row r of an item is query token r / group, head r % group of the KV head.

  __device__ int64_t q_row_index(const detail::Segment& s, int32_t row) const {
    const int32_t num_q_heads = p_.num_kv_heads * p_.group;
    return (static_cast<int64_t>(s.q_begin) + row / p_.group) * num_q_heads + s.head * p_.group + row % p_.group;
  }
  __device__ int32_t num_rows(const detail::Segment& s) const { return s.q_len * p_.group - s.row_tile * kRows; }

  /// Loads, conditions and packs the rows of each row tile, and leaves the factors of rows 2t and 2t + 1 in the lane.
  __device__ void load_queries(const detail::Segment& s) {
    const float kappa = p_.k_scales == nullptr ? 1.0f : p_.k_scales[p_.scale_count == 1 ? 0 : s.head];
    const float v_scale = p_.v_scales == nullptr ? 1.0f : p_.v_scales[p_.scale_count == 1 ? 0 : s.head];
    // Scores are kept in units of the exponent of 2, or of the cap until it has been applied.
    const float unit = p_.softmax_scale * (p_.soft_cap > 0.0f ? 1.0f / p_.soft_cap : detail::kLog2e);
    cap_log2_ = p_.soft_cap * detail::kLog2e;
    v_factor_ = v_scale * static_cast<float>(1 << VCodec::kShift);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const int32_t row = s.row_tile * kRows + 8 * n + g_;
      const bool valid = row < s.q_len * p_.group;
      float x[4 * kSteps];
      const int64_t first = valid ? q_row_index(s, row) * kHeadDim : 0;
#pragma unroll
      for (int i = 0; i < 4 * kSteps; i += 4) {
        const float4 four = valid ? detail::load_q(p_.q, p_.q_dtype, first + channel(i)) : make_float4(0, 0, 0, 0);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
      }
      float bias = 0.0f;
      if (p_.mu != nullptr) {
#pragma unroll
        for (int i = 0; i < 4 * kSteps; ++i) bias += x[i] * p_.mu[s.head * kHeadDim + channel(i)];
        bias += __shfl_xor_sync(0xffffffffu, bias, 1);
        bias += __shfl_xor_sync(0xffffffffu, bias, 2);
      }
      if (p_.z != nullptr) {
#pragma unroll
        for (int i = 0; i < 4 * kSteps; ++i) x[i] *= p_.z[s.head * kHeadDim + channel(i)];
        hadamard(x);
      }
      float exponent = 1.0f;
      if constexpr (!Traits::kBf16Math) {
        float amax = 0.0f;
#pragma unroll
        for (int i = 0; i < 4 * kSteps; ++i) amax = fmaxf(amax, fabsf(x[i]));
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
        // A power of two brings the row into [1, 2), so f16 loses nothing to its range.
        const uint32_t bits = __float_as_uint(amax) & 0x7f800000u;
        exponent = amax > 0.0f && bits < 0x7f800000u ? __uint_as_float(max(bits, 0x00800000u)) : 1.0f;
        const float inverse = __uint_as_float(0x7f000000u - __float_as_uint(exponent));
#pragma unroll
        for (int i = 0; i < 4 * kSteps; ++i) x[i] *= inverse;
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        q_[n][step][0] = pack(x[4 * step], x[4 * step + 1]);
        q_[n][step][1] = pack(x[4 * step + 2], x[4 * step + 3]);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float row_exponent = __shfl_sync(0xffffffffu, exponent, 4 * (2 * t_ + c));
        const float row_bias = __shfl_sync(0xffffffffu, bias, 4 * (2 * t_ + c));
        exact_factor_[n][c] = unit * row_exponent;
        base_factor_[n][c] = unit * row_exponent * kappa * static_cast<float>(1 << KCodec::kShift);
        bias_[n][c] = unit * row_bias;
        limit_[n][c] = detail::kNoScore;
        sum_[n][c] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) acc_[n][i][c] = 0.0f;
    }
  }

  /// Channel of value i that this lane holds of a row: the order in which KTile hands out K.
  __device__ __forceinline__ int channel(int i) const {
    return i / kLaneDims * (4 * kLaneDims) + kLaneDims * t_ + i % kLaneDims;
  }

  /// Hadamard rotation of a row spread over the four lanes of a quad.
  __device__ __forceinline__ void hadamard(float (&x)[4 * kSteps]) const {
#pragma unroll
    for (int h = 1; h < kLaneDims; h *= 2) butterfly(x, h);
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) {
      const float sign = (t_ & d) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) x[i] = fmaf(sign, x[i], __shfl_xor_sync(0xffffffffu, x[i], d));
    }
#pragma unroll
    for (int h = kLaneDims; h < 4 * kSteps; h *= 2) butterfly(x, h);
    const float factor = rsqrtf(static_cast<float>(kHeadDim));
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i) x[i] *= factor;
  }
  __device__ __forceinline__ static void butterfly(float (&x)[4 * kSteps], int h) {
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i) {
      if ((i & h) != 0) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
  }

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return Traits::kBf16Math ? pack_bf16(low, high) : pack_f16(low, high);
  }
  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (Traits::kBf16Math)
      mma_bf16(d, a, b0, b1);
    else
      mma_f16(d, a, b0, b1);
  }

  // -- Pages.

  /// Table entries of a tile's two halves (8 tokens each; the same page unless pages hold 8 tokens).
  struct TilePages {
    int32_t low, high;
  };

  /// One lane reads one of the next 32 entries; the warp shares them by shuffles.
  __device__ __forceinline__ TilePages tile_pages(const detail::Segment& s, int32_t tile) {
    const bool halves = p_.page_shift == 3;
    const int32_t page = halves ? 2 * tile : tile >> (p_.page_shift - 4);
    int32_t index = page - batch_first_;
    if (static_cast<uint32_t>(index) >= 31) {
      batch_first_ = page;
      index = 0;
      const int32_t mine = page + lane_;
      const int32_t last_page = (s.kv_len - 1) >> p_.page_shift;
      batch_entry_ = mine <= last_page ? __ldg(&p_.page_table[s.request * p_.page_table_stride + mine]) : kNoPage;
    }
    TilePages pages;
    pages.low = pages.high = __shfl_sync(0xffffffffu, batch_entry_, index);
    if (halves) {
      pages.high = __shfl_sync(0xffffffffu, batch_entry_, index + 1);
      if (pages.high < 0) pages.high = pages.low;
    }
    return pages;
  }

  /// Index of a tile among those of its page; 0 for pages of 8 or 16 tokens.
  __device__ __forceinline__ int32_t tile_in_page(int32_t tile) const {
    return tile & (((1 << p_.page_shift) - 1) >> 4);
  }

  /// Where this lane copies from in a page and to in a stage. Constant over a segment, and opaque to the compiler,
  /// which would otherwise compute them again for every tile.
  struct LaneCopies {
    uint32_t k, v, scale;           // in the page
    uint32_t k_to, v_to, scale_to;  // in the stage
  };

  __device__ __forceinline__ LaneCopies lane_copies(int32_t head) const {
    const PoolParams& pool = p_.base;
    const int k_row = lane_ / KRows::kChunks, k_chunk = lane_ % KRows::kChunks;
    const int v_row = lane_ / VRows::kChunks, v_chunk = lane_ % VRows::kChunks;
    LaneCopies c;
    c.k = pool.k.data + pool.k.data_head * head + pool.k.data_token * (k_row % 8) + 16 * k_chunk;
    c.v = pool.v.data + pool.v.data_head * head + pool.v.data_token * (v_row % 8) + 16 * v_chunk;
    c.k_to = KRows::offset(k_row, k_chunk);
    c.v_to = VRows::offset(v_row, v_chunk);
    // Lanes from 0 on copy K's scales, the next ones V's.
    const bool of_k = lane_ < Traits::kKScaleBytes / 16;
    const int32_t piece = 16 * (of_k ? lane_ : lane_ - Traits::kKScaleBytes / 16);
    c.scale = piece + (of_k ? pool.k.scale + pool.k.scale_head * head : pool.v.scale + pool.v.scale_head * head);
    c.scale_to = piece + (of_k ? Traits::kKScales : Traits::kVScales);
    c.k = opaque(c.k), c.v = opaque(c.v), c.scale = opaque(c.scale);
    c.k_to = opaque(c.k_to), c.scale_to = opaque(c.scale_to);
    if constexpr (std::is_same_v<KRows, VRows>)
      c.v_to = c.k_to;
    else
      c.v_to = opaque(c.v_to);
    return c;
  }

  /// Copies one plane's rows of a tile: a warp moves 512 bytes at once.
  template <class Rows>
  __device__ __forceinline__ static void copy_rows(uint32_t stage, uint32_t lane_to, const uint8_t* low,
                                                   const uint8_t* high, uint32_t token_stride) {
    constexpr int kRound = 32 / Rows::kChunks;  // rows at once
    if constexpr (kRound == 16) {
      copy_async_16(stage + lane_to, threadIdx.x % 32 / Rows::kChunks < 8 ? low : high);
      return;
    }
#pragma unroll
    for (int i = 0; i < 16; i += kRound) {
      copy_async_16(stage + (lane_to ^ Rows::round_offset(i)) + (i / 8) * (Rows::kBytes / 2),
                    (i < 8 ? low : high) + (i % 8) * token_stride);
    }
  }

  /// Starts the copies of a tile to a stage of this warp.
  __device__ __forceinline__ void copy_tile(const LaneCopies& c, uint32_t stage, int32_t tile, TilePages pages) const {
    const PoolParams& pool = p_.base;
    const uint8_t* low = page_of(pool, pages.low);
    const uint8_t* high = page_of(pool, pages.high);
    const uint32_t part = tile_in_page(tile);
    const uint32_t k = part * 16 * pool.k.data_token, v = part * 16 * pool.v.data_token;
    const uint32_t half = p_.page_shift == 3 ? 0 : 8;
    copy_rows<KRows>(stage, c.k_to, low + (c.k + k), high + (c.k + k + half * pool.k.data_token), pool.k.data_token);
    copy_rows<VRows>(stage + Traits::kVRows, c.v_to, low + (c.v + v), high + (c.v + v + half * pool.v.data_token),
                     pool.v.data_token);
    if constexpr (KCodec::kScales || VCodec::kScales) {
      const bool of_k = lane_ < Traits::kKScaleBytes / 16;
      const uint32_t tile_stride = of_k ? pool.k.scale_tile : pool.v.scale_tile;
      if (lane_ < (Traits::kKScaleBytes + Traits::kVScaleBytes) / 16)
        copy_async_16(stage + c.scale_to, low + (c.scale + part * tile_stride));
    }
  }
  __device__ __forceinline__ static const uint8_t* page_of(const PoolParams& pool, int32_t entry) {
    return pool.pages + static_cast<uint64_t>(static_cast<uint32_t>(entry & (kExactPageBit - 1))) * pool.page_stride;
  }

  // -- One tile.

  /// Scores, times log2(e), of the tile's 16 keys against all rows: c[n] holds keys g, g, g + 8, g + 8 by rows 2t, 2t +
  /// 1, 2t, 2t + 1.
  template <class Tile>
  __device__ __forceinline__ void scores(const Tile& k, const float (&factor)[kRowTiles][2],
                                         float (&c)[kRowTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      k.fragment(step, a);
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) mma(c[n], a, q_[n][step][0], q_[n][step][1]);
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[n][i] = fmaf(c[n][i], factor[n][i & 1], bias_[n][i & 1]);
    if (p_.soft_cap > 0.0f) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[n][i] = cap_log2_ * tanhf(c[n][i]);
    }
  }

  __device__ __forceinline__ bool visible(const detail::Segment& s, int32_t row, int32_t local_key) const {
    if (local_key >= s.kv_len || row >= s.q_len * p_.group) return false;
    const int32_t key = detail::global_position(local_key, p_.cp_rank, p_.cp_size, p_.cp_interleave);
    const int32_t i = row / p_.group;
    const int32_t block = s.global_len - s.q_len;
    int32_t position = block + i;
    if (p_.positions != nullptr) position = p_.positions[s.q_begin + i];
    if (p_.window > 0 && key <= position - p_.window) return false;
    if (key < block) return true;
    switch (p_.draft_mask) {
      case DraftMask::kCausal: return key <= block + i;
      case DraftMask::kFull: return true;
      case DraftMask::kPacked: {
        const int32_t j = key - block;
        return (p_.mask[static_cast<int64_t>(s.q_begin + i) * p_.mask_row_words + j / 32] >> (j % 32)) & 1u;
      }
    }
    return false;
  }

  template <class Tile>
  __device__ __forceinline__ void mask_tile(const detail::Segment& s, int32_t tile, float (&c)[kRowTiles][4],
                                            Tile& v) const {
    const int32_t first = tile * Traits::kTileTokens;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!visible(s, s.row_tile * kRows + 8 * n + 2 * t_ + (i & 1), first + g_ + 8 * (i / 2))) c[n][i] = -INFINITY;
          // Slots past the length may hold anything, NaN included, and 0 * NaN is NaN.
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + 2 * t_ + (i & 1) + 8 * (i / 2) >= s.kv_len) v.clear(i);
  }

  /// Moves the reference maximum when a score has outgrown it; scores become weights.
  __device__ __forceinline__ void softmax(float (&c)[kRowTiles][4]) {
    bool outgrown = false;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) outgrown |= c[n][i] > limit_[n][i & 1];
    if (__any_sync(0xffffffffu, outgrown)) rescale(c);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        c[n][i] = exp2_approx(c[n][i] + (detail::kRescaleSlack - limit_[n][i & 1]));
        sum_[n][i & 1] += c[n][i];
      }
    }
  }
  __device__ __forceinline__ void rescale(const float (&c)[kRowTiles][4]) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = fmaxf(c[n][j], c[n][j + 2]);
#pragma unroll
        for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        const float old = limit_[n][j] - detail::kRescaleSlack;
        const float moved = fmaxf(old, top);
        const float factor = exp2_approx(old - moved);
        limit_[n][j] = moved + detail::kRescaleSlack;
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

  // -- One segment.

  __device__ void attend(const detail::Segment& s) {
    const int32_t count = s.tile_end - s.tile_begin;
    const int32_t first = s.tile_begin + count * warp_ / Traits::kWarps;
    const int32_t last = static_cast<int32_t>(opaque(s.tile_begin + count * (warp_ + 1) / Traits::kWarps));
    batch_first_ = -64;
    const bool any_exact = attend_base(s, first, last);
    if constexpr (Traits::kExact) {
      if (any_exact) attend_exact(s, first, last);
    }
  }

  /// The next tile from `tile` on whose pages are (not) exact, or `last`.
  template <bool kWantExact>
  __device__ __forceinline__ int32_t next_tile(const detail::Segment& s, int32_t tile, int32_t last, TilePages& pages,
                                               bool& skipped) {
    for (; tile < last; ++tile) {
      pages = tile_pages(s, tile);
      if constexpr (!Traits::kExact) return tile;
      if (is_exact_page(pages.low) == kWantExact) return tile;
      skipped = true;
    }
    return last;
  }

  /// Pages of the base pool, through a ring of stages; returns whether there are exact ones too. Those are a second
  /// loop, so that they cost the first no registers.
  __device__ __forceinline__ bool attend_base(const detail::Segment& s, int32_t first, int32_t last) {
    constexpr int kAhead = Traits::kStages - 1;
    constexpr uint32_t kRing = Traits::kStages * Traits::kStageBytes;
    const LaneCopies copies = lane_copies(s.head);
    const LaneRead k_read = KTile<KCodec, kHeadDim>::lane_read(g_, t_);
    const LaneRead v_read = VTile<VCodec, kHeadDim>::lane_read(g_, t_);
    TileQueue<Traits::kExact, kAhead> under_way;
    TilePages pages;
    bool skipped = false;
    int32_t next = first;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      next = next_tile<false>(s, next, last, pages, skipped);
      under_way.push(next, i);
      if (next < last) copy_tile(copies, stages_ + i * Traits::kStageBytes, next++, pages);
      commit_copies();
    }
    // The queries' latency hides behind that of the first tiles.
    load_queries(s);
    const int32_t full_begin = s.full_begin, full_end = s.full_end;
    uint32_t from = stages_;
    uint32_t to = stages_ + kAhead * Traits::kStageBytes;
    for (int32_t tile = under_way.front(first); tile < last; tile = under_way.front(tile + 1)) {
      wait_copies<kAhead - 1>();
      __syncwarp();
      next = next_tile<false>(s, next, last, pages, skipped);
      under_way.pop_and_push(next);
      if (next < last) copy_tile(copies, to, next++, pages);
      commit_copies();

      KTile<KCodec, kHeadDim> k;
      k.load(from, from + Traits::kKScales, k_read);
      float c[kRowTiles][4];
      scores(k, base_factor_, c);
      VTile<VCodec, kHeadDim> v;
      v.load(from + Traits::kVRows, from + Traits::kVScales, v_read);
      if (tile < full_begin || tile >= full_end) mask_tile(s, tile, c, v);
      softmax(c);
      accumulate(v, c);
      to = from;
      from = from + Traits::kStageBytes == stages_ + kRing ? stages_ : from + Traits::kStageBytes;
    }
    return skipped;
  }

  __device__ void attend_exact(const detail::Segment& s, int32_t first, int32_t last) {
    // From here on the accumulators are in units of V itself.
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc_[n][i][j] *= v_factor_;
    v_factor_ = 1.0f;
    batch_first_ = -64;
    const PoolParams& pool = p_.exact;
    const int32_t in_page = (1 << p_.page_shift) - 1;
    TilePages pages;
    bool skipped = false;
    for (int32_t tile = next_tile<true>(s, first, last, pages, skipped); tile < last;
         tile = next_tile<true>(s, tile + 1, last, pages, skipped)) {
      const uint8_t* low = page_of(pool, pages.low);
      const uint8_t* high = page_of(pool, pages.high);
      const int32_t token = tile * Traits::kTileTokens;
      ExactKTile<kLaneDims, kHeadDim> k;
      const uint32_t k_head = pool.k.data + pool.k.data_head * s.head;
      k.load(low + k_head + ((token + g_) & in_page) * pool.k.data_token,
             high + k_head + ((token + 8 + g_) & in_page) * pool.k.data_token, t_);
      float c[kRowTiles][4];
      scores(k, exact_factor_, c);
      VTile<F16, kHeadDim> v;
      const uint32_t v_head = pool.v.data + pool.v.data_head * s.head;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v.load_row(i, (i < 2 ? low : high) + v_head + ((token + v_token(i, t_)) & in_page) * pool.v.data_token, g_);
      if (tile < s.full_begin || tile >= s.full_end) mask_tile(s, tile, c, v);
      softmax(c);
      accumulate(v, c);
    }
  }

  // -- Epilogue: warps of the block, then blocks of the item.

  __device__ void finish(const detail::Segment& s, int32_t position, int32_t block_begin, int32_t share) {
    const int32_t rows = min(num_rows(s), kRows);
    combine_warps();
    const Extent e = extent(s.request);
    const int32_t item = s.head * e.row_tiles + s.row_tile;
    const int32_t item_begin = prefix_[s.request] + item * e.tiles();
    const int32_t first_block = item_begin / share;
    const int32_t last_block = (item_begin + e.tiles() - 1) / share;
    if (first_block == last_block) {
      write_rows(s, rows);
      __syncthreads();
      return;
    }
    const int32_t slot = 2 * blockIdx.x + (position == block_begin ? 0 : 1);
    store_partial(slot, rows);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t* counter =
          p_.counters + (static_cast<int64_t>(s.request) * p_.num_kv_heads + s.head) * p_.max_row_tiles + s.row_tile;
      const uint32_t parts = static_cast<uint32_t>(last_block - first_block + 1);
      const uint32_t before = atomicAdd(counter, 1u);
      shared_.is_last = before + 1 == parts ? 1 : 0;
      if (shared_.is_last != 0) *counter = 0;
    }
    __syncthreads();
    if (shared_.is_last != 0) {
      __threadfence();
      merge_parts(s, rows, item_begin, first_block, last_block, share);
    }
    __syncthreads();
  }

  /// Leaves the block's sum in warp 0's shared rows.
  __device__ void combine_warps() {
    __syncthreads();  // partials lie over the stages
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) sum_[n][j] += __shfl_xor_sync(0xffffffffu, sum_[n][j], d);
        if (g_ == 0)
          shared_.state[warp_][8 * n + 2 * t_ + j] =
              make_float2(sum_[n][j] > 0.0f ? limit_[n][j] - detail::kRescaleSlack : -INFINITY, sum_[n][j]);
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int channel = kHeadDim / 8 * g_ + 2 * i;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          *reinterpret_cast<float2*>(&shared_.partials.out[warp_][8 * n + 2 * t_ + j][channel]) =
              make_float2(acc_[n][i][j] * v_factor_, acc_[n][i][j + 2] * v_factor_);
        }
      }
    }
    __syncthreads();
    for (int32_t row = warp_; row < kRows; row += Traits::kWarps) {
      float top = -INFINITY;
#pragma unroll
      for (int w = 0; w < Traits::kWarps; ++w) top = fmaxf(top, shared_.state[w][row].x);
      float factor[Traits::kWarps];
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < Traits::kWarps; ++w) {
        factor[w] = top == -INFINITY ? 0.0f : exp2_approx(shared_.state[w][row].x - top);
        sum += factor[w] * shared_.state[w][row].y;
      }
      __syncwarp();
      for (int32_t d = lane_; d < kHeadDim; d += 32) {
        float value = 0.0f;
#pragma unroll
        for (int w = 0; w < Traits::kWarps; ++w) value += factor[w] * shared_.partials.out[w][row][d];
        shared_.partials.out[0][row][d] = value;
      }
      if (lane_ == 0) shared_.state[0][row] = make_float2(top, sum);
    }
    __syncthreads();
  }

  __device__ void store_partial(int32_t slot, int32_t rows) {
    float* out = p_.partial_out + static_cast<int64_t>(slot) * kRows * kHeadDim;
    for (int32_t i = threadIdx.x; i < rows * kHeadDim; i += Traits::kThreads)
      out[i] = shared_.partials.out[0][i / kHeadDim][i % kHeadDim];
    if (threadIdx.x < rows)
      p_.partial_state[static_cast<int64_t>(slot) * kRows + threadIdx.x] = shared_.state[0][threadIdx.x];
  }

  __device__ void merge_parts(const detail::Segment& s, int32_t rows, int32_t item_begin, int32_t first_block,
                              int32_t last_block, int32_t share) {
    const int32_t first_slot = 2 * first_block + (item_begin == first_block * share ? 0 : 1);
    const auto slot_of = [&](int32_t block) {
      return static_cast<int64_t>(block == first_block ? first_slot : 2 * block);
    };
    for (int32_t row = warp_; row < rows; row += Traits::kWarps) {
      float top = -INFINITY;
      for (int32_t b = first_block + lane_; b <= last_block; b += 32)
        top = fmaxf(top, __ldcg(&p_.partial_state[slot_of(b) * kRows + row]).x);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
      float value[kHeadDim / 32] = {};
      float sum = 0.0f;
      // A lane reads one part's state; all parts of the batch are then in flight together.
      for (int32_t batch = first_block; batch <= last_block; batch += 32) {
        float2 state = make_float2(-INFINITY, 0.0f);
        if (batch + lane_ <= last_block) state = __ldcg(&p_.partial_state[slot_of(batch + lane_) * kRows + row]);
        const float factor = state.x == -INFINITY ? 0.0f : exp2_approx(state.x - top);
        const float part_sum = factor * state.y;
        const int32_t count = min(32, last_block - batch + 1);
#pragma unroll 8
        for (int32_t b = 0; b < count; ++b) {
          const float part_factor = __shfl_sync(0xffffffffu, factor, b);
          sum += __shfl_sync(0xffffffffu, part_sum, b);
          const float* part = p_.partial_out + (slot_of(batch + b) * kRows + row) * kHeadDim;
#pragma unroll
          for (int i = 0; i < kHeadDim / 32; ++i) value[i] = fmaf(part_factor, __ldcg(part + lane_ + 32 * i), value[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) shared_.partials.out[0][row][lane_ + 32 * i] = value[i];
      if (lane_ == 0) shared_.state[0][row] = make_float2(top, sum);
    }
    __syncthreads();
    write_rows(s, rows);
  }

  __device__ void write_rows(const detail::Segment& s, int32_t rows) {
    for (int32_t row = warp_; row < rows; row += Traits::kWarps) {
      const int64_t index = q_row_index(s, s.row_tile * kRows + row);
      const float2 state = shared_.state[0][row];
      float denominator = state.y;
      if (p_.sinks != nullptr && state.x != -INFINITY) {
        const int32_t q_head = s.head * p_.group + (s.row_tile * kRows + row) % p_.group;
        denominator += exp2f(p_.sinks[q_head] * detail::kLog2e - state.x);
      }
      const float inverse = state.x == -INFINITY ? 0.0f : 1.0f / denominator;
      for (int32_t d = lane_; d < kHeadDim; d += 32)
        detail::store_out(p_.out, p_.out_dtype, index * kHeadDim + d, shared_.partials.out[0][row][d] * inverse);
      if (p_.lse != nullptr && lane_ == 0)
        p_.lse[index] = state.x == -INFINITY ? -INFINITY : (state.x + log2f(state.y)) * detail::kLn2;
    }
  }

  const DecodeParams& p_;
  SharedStorage& shared_;
  int32_t* prefix_;
  const int32_t warp_, lane_, g_, t_;
  const uint32_t stages_;  ///< Shared-memory address of this warp's ring.
  int32_t batch_first_ = -64;
  int32_t batch_entry_ = 0;
  float v_factor_ = 1.0f;
  float cap_log2_ = 0.0f;
  uint32_t q_[kRowTiles][kSteps][2];
  float acc_[kRowTiles][kTiles][4];
  float base_factor_[kRowTiles][2], exact_factor_[kRowTiles][2], bias_[kRowTiles][2];
  float limit_[kRowTiles][2];  ///< Reference maximum plus slack.
  float sum_[kRowTiles][2];
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    decode_splitkv_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<typename Traits::SharedStorage*>(memory);
  auto* prefix = reinterpret_cast<int32_t*>(memory + sizeof(typename Traits::SharedStorage));
  DecodeBlock<Traits>(params, shared, prefix).run();
}

template <class Traits>
KernelImage decode_splitkv_image() {
  return {.function = reinterpret_cast<const void*>(&decode_splitkv_kernel<Traits>),
          .threads = Traits::kThreads,
          .shared_bytes = static_cast<int32_t>(sizeof(typename Traits::SharedStorage))};
}

}  // namespace kvant::attn::cuda
