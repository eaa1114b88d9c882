#pragma once

// Decode and verify attention over paged, quantised KV: split-KV on mma.sync, SM80 and later.
//   q [tokens, q heads, Dk], pages in any of the layout's formats, out [tokens, q heads, Dv], fp32 inside.
// Launch: a fixed grid of 128-thread blocks, or of 64. Blocks read the lengths on the device, cut all 16-token tiles
// into equal chunks and take one each; the last block to finish an item (request, KV head, row tile) merges its parts
// in order. Where items are alike and there are enough of them, each warp takes whole ones and nothing is merged.
// Limits: head dims 64, 128, 256; Dk = Dv; up to 8 * kRowTiles query rows an item, more rows are more items.

#include <cstdint>
#include <type_traits>

#include "attn/cuda/common/codecs.cuh"
#include "attn/cuda/generic/decode_cluster.cuh"
#include "attn/cuda/generic/decode_splitkv.h"
#include "core/kernel_overlap.cuh"

namespace kvant::attn::cuda {

// ---- Traits --------------------------------------------------------------------------------------------------------

template <class KCodec_, class VCodec_, int kHeadDim_, int kRowTiles_, bool kExact_, int kWarps_ = 4>
struct DecodeTraits {
  using KCodec = KCodec_;
  using VCodec = VCodec_;
  using Pairs = DecodeTraits<KCodec_, VCodec_, kHeadDim_, kRowTiles_, kExact_, 2>;  ///< Blocks of two warps.
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowTiles = kRowTiles_;  ///< Eight query rows each.
  using Params = DecodeParams;
  /// Launches with few requests and with many are kernels of their own where both matter: neither is to jump over what
  /// the other does. In a model's step, where other kernels have used the caches for instructions, that costs
  /// microseconds.
  static constexpr bool kSplits = kRowTiles_ <= 2;
  static constexpr bool kFew = true, kMany = true;  ///< Up to kFewRequests, and more.
  static constexpr bool kShares = false;   ///< Whether requests' shared pages are other items, and Params has `shared`.
  static constexpr bool kExact = kExact_;  ///< Entries may name the exact pool.
  static constexpr bool kTilePages = false;  ///< Whether pages are a tile each, with rows of a head side by side.
  static constexpr bool kCaps = true;        ///< Whether scores may be capped.
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kTileTokens = 16;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kTiles = kHeadDim / 16;
  /// More rows than registers hold: each warp prepares one row tile, and all read the operands from shared memory.
  static constexpr bool kSharedRows = kRowTiles > 2;
  static constexpr bool kBf16Math = KCodec::kBf16Math;

  using KRows = TileRows<kHeadDim * KCodec::kBits / 8>;
  using VRows = TileRows<kHeadDim * VCodec::kBits / 8>;
  static constexpr int kKScaleBytes = KCodec::kScales ? kHeadDim : 0;  ///< 16 tokens, head_dim / 16 blocks.
  static constexpr int kVScaleBytes = VCodec::kScales ? kHeadDim : 0;
  static constexpr int kKScales = KRows::kBytes;
  static constexpr int kVRows = kKScales + kKScaleBytes;
  static constexpr int kVScales = kVRows + VRows::kBytes;
  static constexpr int kTileBytes = kVScales + kVScaleBytes;
  /// Tiles a warp handles at once: small ones share what a round costs, and overlap.
  static constexpr int kRoundTiles = kTileBytes <= 2304 ? 2 : 1;
  /// Whether a last tile without a second one is attended to alone.
  static constexpr bool kSingles = false;
  /// Whether warps may work alone: not where they prepare each other's queries.
  static constexpr bool kAlone = !kSharedRows;
  /// Fewest tiles a block takes, so that little work is not cut into parts that cost more to merge.
  static constexpr int kMinShare = 2 * kWarps;
  /// The same for parts of items in blocks of their own; merging within a cluster is cheap.
  static constexpr int kMinPart = kTileBytes >= 8192 ? 4 * kWarps : 2 * kWarps;
  static constexpr int kPartTiles = 4 * kWarps;
  /// Before Hopper no kernel starts before the one before it has ended, so there is no time to guess in. More rows
  /// leave no registers for it: with two row tiles nvfp4 loses 5 to 20 % to the code around the main loop.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static constexpr bool kGuesses = kRowTiles == 1;
#else
  static constexpr bool kGuesses = false;
#endif
  /// Whether blocks of a cluster may share an item: a warp's stages take the sums of all rows then.
  static constexpr bool kClusters = !kSharedRows;
  /// Whether a stage holds the keys of a tile or its values: of large tiles, so that four blocks fit a multiprocessor.
  static constexpr bool kHalves = kTileBytes >= 8192 && kRowTiles == 1 && KRows::kBytes == VRows::kBytes;
  static_assert(!kHalves || (kRoundTiles == 1 && kKScaleBytes + kVScaleBytes == 0), "keys and values, and no scales");
  static constexpr int kStageBytes = kHalves ? KRows::kBytes : kRoundTiles * kTileBytes;
  static constexpr int kStageVRows = kHalves ? 0 : kVRows;
  /// Rounds of a warp in shared memory: at least 16 KiB under way per scheduler hides the memory's latency.
  static constexpr int kStages = kStageBytes >= 8192 ? 2 : kStageBytes >= 4096 ? 3 : 4;
  static constexpr int kMinBlocks = 4 / kWarps * (kRowTiles > 1 || kHeadDim > 128 ? 2 : kStageBytes >= 8192 ? 3 : 4);

  /// Where shared memory limits the blocks of a multiprocessor, a warp that works alone has one segment, and all have
  /// an empty one to come after it.
  static constexpr bool kOneSegment = kMinBlocks * kWarps * kStages * kStageBytes >= 216 * 1024;
  static constexpr int kSegments = kOneSegment ? kWarps + 1 : 3 * kWarps;
  /// Whether a stage takes a warp's sums of eight rows.
  static constexpr bool kSumsInStage = kStageBytes >= 8 * 4 * kHeadDim;

  /// A tile of an exact page in a warp's ring, once that holds nothing else: K, then V.
  using ExactRows = TileRows<2 * kHeadDim>;
  static_assert(!kExact || kStages * kStageBytes >= 2 * ExactRows::kBytes, "a warp's ring takes a tile of 16-bit rows");

  struct SharedStorage {
    alignas(128) uint8_t stages[kWarps][kStages][kStageBytes];
    uint2 q[kSharedRows ? kRowTiles : 1][kSharedRows ? kSteps : 1][kSharedRows ? 32 : 1];  ///< Operands of each lane.
    float exponent[kSharedRows ? kRows : 1];  ///< What a row of q was divided by.
    float4 sums_beside[kSumsInStage ? 1 : kWarps * 2 * kHeadDim];
    float2 state[kWarps][kRows];
    float bias[kWarps][kRows];  ///< What conditioning adds to a row's scores.
    uint32_t sums[kWarps];      ///< Which byte of a warp's stages starts its sums, eight rows at a time.
    detail::Segment segments[kSegments];
    detail::Chunks chunks;
    detail::Sharing sharing[kWarps];
    int4 scan[kWarps];
    float k_factor[kWarps], v_factor[kWarps];  ///< Undo the codecs' factors and the cache's scales.
    int32_t is_last;
  };
  static_assert(kMinBlocks * (sizeof(SharedStorage) + decode_prefix_bytes(256) + 1024) <= 228 * 1024,
                "256 requests take no blocks from a multiprocessor");
  static_assert(!kSharedRows || kRowTiles == kWarps, "a row tile for each warp");
  static_assert(kHeadDim % 64 == 0, "lanes hold whole chunks of 64 channels");
  static_assert(!kClusters || kStages * kStageBytes >= kRowTiles * 8 * 4 * kHeadDim, "a warp's sums of all rows");
  static_assert(KCodec::kBf16Math == VCodec::kBf16Math, "P and Q share their operand type with V and K");

  template <class Storage>
  __device__ __forceinline__ static int32_t block(const Storage&) {
    return static_cast<int32_t>(blockIdx.x);
  }
  template <class Storage>
  __device__ __forceinline__ static int32_t num_blocks(const Storage&) {
    return static_cast<int32_t>(gridDim.x);
  }
  /// Warps of the launch's block before this block's.
  __device__ __forceinline__ static int32_t first_warp() { return 0; }
  __device__ __forceinline__ static void sync_block() { __syncthreads(); }
  __device__ __forceinline__ static bool all_of_block(bool value) { return __syncthreads_and(value ? 1 : 0) != 0; }
};

/// For pages of a tile each with rows of a head side by side, and scores that are not capped: addresses of a lane's
/// copies differ by constants. With one row tile it is slower, with more nvfp4 takes up to a fifteenth less time:
/// measured.
template <class KCodec, class VCodec, int kHeadDim, int kRowTiles, bool kExact, int kWarps = 4>
struct DecodeTilePagesTraits : DecodeTraits<KCodec, VCodec, kHeadDim, kRowTiles, kExact, kWarps> {
  using Pairs = DecodeTilePagesTraits<KCodec, VCodec, kHeadDim, kRowTiles, kExact, 2>;
  static_assert(!kExact, "exact pages have rows of another size");
  static constexpr bool kTilePages = true;
  static constexpr bool kCaps = false;
};

template <class Both>
struct FewRequestsTraits : Both {
  static constexpr bool kMany = false;
  static constexpr bool kAlone = false;  ///< Few requests hardly have an item for every warp.
  /// A warp has a round or two, so that half of one counts; with exact pages the code for it costs more.
  static constexpr bool kSingles = Both::kRoundTiles == 2 && Both::kRowTiles == 1 && !Both::kExact;
};
template <class Both>
struct ManyRequestsTraits : Both {
  static constexpr bool kFew = false;
  static constexpr bool kGuesses = false;  ///< All lengths read twice by every warp cost more than they give.
  static constexpr bool kClusters = false;
};

/// A multiprocessor's blocks as the teams of one, each with a row of the block's threads and a named barrier.
template <class Alone>
struct InTeams : Alone {
  static constexpr int kTeams = Alone::kMinBlocks;
  struct SharedStorage : Alone::SharedStorage {};

  template <class Storage>
  __device__ __forceinline__ static int32_t block(const Storage&) {
    return static_cast<int32_t>(kTeams * blockIdx.x + threadIdx.y);
  }
  template <class Storage>
  __device__ __forceinline__ static int32_t num_blocks(const Storage&) {
    return static_cast<int32_t>(kTeams * gridDim.x);
  }
  __device__ __forceinline__ static int32_t first_warp() { return static_cast<int32_t>(Alone::kWarps * threadIdx.y); }
  __device__ __forceinline__ static void sync_block() {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.y) : "memory");
  }
  __device__ __forceinline__ static bool all_of_block(bool value) {
    uint32_t all;
    asm volatile(
        "{.reg .pred p, q;\n setp.ne.u32 p, %1, 0;\n bar.red.and.pred q, %2, 128, p;\n selp.u32 %0, 1, 0, q;\n}"
        : "=r"(all)
        : "r"(value ? 1u : 0u), "r"(1 + threadIdx.y)
        : "memory");
    return all != 0;
  }
};

/// One block's work, from its share of the tiles to the rows that it is the last to finish.
template <class Traits>
class DecodeBlock : private DecodeCluster<Traits> {
 public:
  using Base = DecodeCluster<Traits>;
  using Base::attend;
  using Base::Base;
  using Base::chunk;
  using Base::confirm_lengths;
  using Base::copy_index_;
  using Base::finish;
  using Base::finish_in_cluster;
  using Base::has_one;
  using Base::is_alone;
  using Base::is_shared;
  using Base::lane_;
  using Base::lane_lengths;
  using Base::leave_nothing;
  using Base::leave_sums;
  using Base::look_ahead;
  using Base::next_segment;
  using Base::no_guess;
  using Base::p_;
  using Base::prefetch_page_table;
  using Base::scan_few;
  using Base::scan_lengths;
  using Base::segment;
  using Base::settle;
  using Base::shared_;
  using Base::sharing;
  using Base::start_by_guess;

  __device__ void run() {
    allow_next_kernel();
    touch_parameters(p_);
    prefetch_page_table();
    // While the kernels before this one end, lengths and page table mostly are what they will be. A warp that has one
    // segment by them finds it, brings its first tiles to L2, and once it may, copies them, all before it knows whether
    // that is right.
    detail::Chunks chunks = no_guess();
    bool guess = Traits::kGuesses;
    bool has_tiles = false;
    if constexpr (Traits::kGuesses) {
      if (guess) {
        chunks = scan_few(true);
        has_tiles = has_chunk(chunks) && segment(0).tile_begin < segment(0).tile_end;
        guess = chunks.total >= 0 && (!has_tiles || look_ahead());
      }
    }
    wait_for_previous_kernel();
    if constexpr (Traits::kGuesses) {
      if (guess) guess = has_tiles ? start_by_guess() : confirm_lengths(lane_lengths(false));
      if (!guess) copy_index_ = -1;
    }
    work(guess, chunks);
  }

  /// Once the stream's previous kernel has ended, and nothing has been guessed.
  __device__ void work() {
    prefetch_page_table();
    work(false, {});
  }

 private:
  /// `chunks` are known where the guess of them was right.
  __device__ __forceinline__ void work(bool guess, detail::Chunks chunks) {
    if (!guess) chunks = scan_lengths();
    if (!has_chunk(chunks)) return;
    const bool one = has_one(chunks.sharing), alone = is_alone(chunks.sharing);
    const bool leads = (alone ? lane_ : threadIdx.x) == 0;
    // A team's leader finds segments two ahead: barriers at a segment's end make them known to all before the next one
    // starts, and that one copies ahead. The one that is found takes the place of the one before that at work.
    for (int32_t index = one ? 0 : 1;; index = index == 2 ? 0 : index + 1) {
      const bool is_first = copy_index_ < 0 && index == 1, is_second = copy_index_ < 0 && index == 2;
      if (leads && !one && (!Traits::kOneSegment || !alone || is_first)) {
        const int32_t position = is_first ? chunk() * chunks.size : segment(index == 2 ? 0 : index + 1).next;
        segment(index == 0 ? 2 : index - 1) = next_segment(position);
      }
      if (is_first) continue;
      if (is_second) {
        if (Traits::kOneSegment && alone && threadIdx.x == 0) shared_.segments[Traits::kWarps] = {};
        this->sync_block();
        continue;
      }
      const detail::Segment& s = segment(index);
      const bool works = s.tile_begin < s.tile_end;
      if (works) {
        attend(index);
        if (!in_cluster()) {
          // Read before the last barrier of finish: behind it the leader writes over the segment.
          const bool shared = is_shared(s);
          const bool written = finish(s);
          if constexpr (Traits::kShares) {
            if (written && shared) settle(s);
          }
          if (has_one(sharing())) break;
          continue;
        }
        leave_sums();
      } else {
        if (!in_cluster()) break;
        leave_nothing();
      }
      finish_in_cluster(s);
      return;
    }
    if constexpr (Traits::kShares) this->merge_shared(&merge_shared_rows);
  }

  __device__ __forceinline__ bool has_chunk(const detail::Chunks& chunks) const {
    return this->block() * chunks.size < chunks.total;
  }
  __device__ __forceinline__ bool in_cluster() const {
    return Traits::kClusters && sharing() == detail::Sharing::kPart && cluster_size() > 1;
  }
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    decode_splitkv_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<typename Traits::SharedStorage*>(memory);
  auto* prefix = reinterpret_cast<int32_t*>(memory + sizeof(typename Traits::SharedStorage));
  DecodeBlock<Traits>(params, shared, prefix).run();
}

/// Large launches are faster so with one row tile, nvfp4's by a twentieth: measured. Before Hopper the teams' shared
/// memory does not fit a block.
template <class Traits>
__global__ void __launch_bounds__(Traits::kTeams* Traits::kThreads, 1)
    decode_teams_kernel([[maybe_unused]] const __grid_constant__ DecodeParams params) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  using Storage = typename Traits::SharedStorage;
  auto& shared = *reinterpret_cast<Storage*>(memory + threadIdx.y * sizeof(Storage));
  auto* prefixes = reinterpret_cast<int32_t*>(memory + Traits::kTeams * sizeof(Storage));
  DecodeBlock<Traits>(params, shared, prefixes + threadIdx.y * (params.num_requests + 1)).run();
#endif
}

template <class Traits>
KernelImage decode_teams_image() {
  return {.function = reinterpret_cast<const void*>(&decode_teams_kernel<Traits>),
          .threads = Traits::kThreads,
          .shared_bytes = static_cast<int32_t>(Traits::kTeams * sizeof(typename Traits::SharedStorage)),
          .teams = Traits::kTeams};
}

/// With two row tiles blocks of two warps: a multiprocessor holds four, and twice as many items start at once.
template <class Traits>
using ForManyRequests = ManyRequestsTraits<std::conditional_t<Traits::kRowTiles == 2, typename Traits::Pairs, Traits>>;

template <class Traits>
KernelImage decode_image_of() {
  return {.function = reinterpret_cast<const void*>(&decode_splitkv_kernel<Traits>),
          .threads = Traits::kThreads,
          .shared_bytes = static_cast<int32_t>(sizeof(typename Traits::SharedStorage))};
}

template <class Traits>
KernelImage decode_splitkv_image(DecodeVariant variant) {
  if constexpr (!Traits::kSplits) {
    return variant == DecodeVariant::kTeams ? KernelImage{} : decode_image_of<Traits>();
  } else {
    if (variant == DecodeVariant::kFew) return decode_image_of<FewRequestsTraits<Traits>>();
    if (variant == DecodeVariant::kMany) return decode_image_of<ForManyRequests<Traits>>();
    if constexpr (Traits::kRowTiles == 1 && Traits::kMinBlocks == 4)
      return decode_teams_image<InTeams<ManyRequestsTraits<Traits>>>();
    return {};
  }
}

}  // namespace kvant::attn::cuda
