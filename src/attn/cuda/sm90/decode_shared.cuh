#pragma once

// Decode of requests that share leading pages, in one launch. Runs of requests with pages in common are prefill items:
// the rows of all their requests, 128 an item, against the shared keys. Their own pages are items of the decode kernel,
// which starts behind the shared ones. The launch's first blocks do the one, the others the other, in proportion to the
// work; whoever has a row's own pages merges its parts. A block of the launch is several of the decode kernel's, its
// teams. Limits: those of both kernels; no window.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attn/cuda/generic/decode_splitkv.cuh"
#include "attn/cuda/sm90/decode_shared.h"
#include "attn/cuda/sm90/shared_pages.cuh"

namespace kvant::attn::cuda {

/// What an item of the decode kernel costs beside its tiles, in tiles.
inline constexpr int32_t kItemTiles = 12;

template <class KCodec, class VCodec, int kHeadDim, int kRowTiles, bool kExact>
struct DecodeSharedTraits : InTeams<DecodeTraits<KCodec, VCodec, kHeadDim, kRowTiles, kExact>> {
  using Base = DecodeTraits<KCodec, VCodec, kHeadDim, kRowTiles, kExact>;
  using Params = SharingDecodeParams;
  static constexpr bool kShares = true;
  static constexpr bool kClusters = false;
  static constexpr bool kGuesses = false;  ///< How blocks divide takes lengths that are final.
  static constexpr int kTeams = 4;
  using Pages = SharedPagesTraits<KCodec::kBf16Math ? UnitFormat::k16Bits
                                  : KCodec::kScales ? UnitFormat::kNvfp4Packed
                                                    : UnitFormat::kE4m3,
                                  kHeadDim>;
  static_assert(Base::kMinBlocks == kTeams && Pages::kThreads == kTeams * Base::kThreads);
  struct SharedStorage : Base::SharedStorage {
    detail::Later later[Base::kWarps];
    int32_t first_block;  ///< Blocks of the decode kernel that other work has taken the place of.
    int32_t part_tiles;   ///< See shared_parts.
  };

  template <class Storage>
  __device__ __forceinline__ static int32_t block(const Storage& shared) {
    return static_cast<int32_t>(kTeams * blockIdx.x + threadIdx.y) - shared.first_block;
  }
  template <class Storage>
  __device__ __forceinline__ static int32_t num_blocks(const Storage& shared) {
    return static_cast<int32_t>(kTeams * gridDim.x) - shared.first_block;
  }
};

/// The division with which both kinds of work should end soonest: so many parts an item, and as many blocks as take
/// them in whole rounds. Each lane of a warp looks at one; `units` are those of 1 + lane % kMaxSharedParts parts.
__device__ __forceinline__ SharedDivision best_division(int32_t units, int32_t most_tiles, int32_t own_tiles,
                                                        const SharedCosts& costs) {
  static_assert(32 % kMaxSharedParts == 0);
  const auto grid = static_cast<int32_t>(gridDim.x), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t n = lane % kMaxSharedParts, rounds = lane / kMaxSharedParts + 1;
  SharedDivision mine = {0, units, (most_tiles + n) / (n + 1)};
  mine.blocks = min((mine.units + rounds - 1) / rounds, grid - 1);
  const auto real_rounds = static_cast<float>((mine.units + mine.blocks - 1) / mine.blocks);
  const float pages_time = real_rounds * (costs.unit + costs.tile * static_cast<float>(mine.part_tiles));
  const float own_time = __fdividef(static_cast<float>(own_tiles), static_cast<float>(grid - mine.blocks));
  const uint32_t time = __float_as_uint(fmaxf(pages_time, own_time));  // Positive, so that bits are in order.
  const uint32_t best = __ballot_sync(0xffffffffu, time == __reduce_min_sync(0xffffffffu, time));
  const int from = __ffs(static_cast<int>(best)) - 1;
  return {__shfl_sync(0xffffffffu, mine.blocks, from), __shfl_sync(0xffffffffu, mine.units, from),
          __shfl_sync(0xffffffffu, mine.part_tiles, from)};
}

/// How many blocks the shared pages get; every warp computes the same. `sums` is shared memory.
template <class Traits>
__device__ __forceinline__ SharedDivision divide_blocks(const SharedDecodeParams& params, int32_t* sums) {
  const SharingDecodeParams& p = params.decode;
  constexpr int32_t kThreads = 128 * Traits::kTeams, kWarps = kThreads / 32;
  const auto thread = static_cast<int32_t>(threadIdx.x + 128 * threadIdx.y);
  const int32_t warp = thread / 32, lane = thread % 32;
  // Asked for together, whether needed or not.
  const int32_t num_shared = p.shared.runs[0].num_requests;
  // Tiles of the longest run, and of requests' own pages with what an item costs beside them.
  int32_t most_tiles = 0, own = 0;
  for (int32_t r = thread; r < p.num_requests; r += kThreads) {
    const SharedRun run = p.shared.runs[1 + r];
    const int32_t q_len = p.q_offsets[r + 1] - p.q_offsets[r];
    const int32_t length = owned_keys(p.kv_lens[r], p.cp_rank, p.cp_size, p.cp_interleave);
    const int32_t tiles = max((length - (run.num_pages << p.page_shift) + 15) / 16, 0);
    own += (q_len * p.group + Traits::kRows - 1) / Traits::kRows * (tiles + kItemTiles);
    most_tiles = max(most_tiles, shared_tiles(p.shared, run));
  }
  if (num_shared == 0) return {0, 0, 1};
  own = __reduce_add_sync(0xffffffffu, own);
  most_tiles = __reduce_max_sync(0xffffffffu, most_tiles);
  if (lane == 0) sums[warp] = own, sums[kWarps + warp] = most_tiles;
  __syncthreads();
  own = __reduce_add_sync(0xffffffffu, lane < kWarps ? sums[lane] : 0);
  most_tiles = __reduce_max_sync(0xffffffffu, lane < kWarps ? sums[kWarps + lane] : 0);
  int32_t units[kMaxSharedParts] = {};  // For one part an item, two, and so on.
  for (int32_t r = thread; r < p.num_requests; r += kThreads) {
    const SharedRun run = p.shared.runs[1 + r];
    if (run.num_requests == 0 || run.first_request != r) continue;
    const int32_t rows = (p.q_offsets[r + run.num_requests] - p.q_offsets[r]) * p.group;
    const int32_t items = (rows + kSharedItemRows - 1) / kSharedItemRows * p.num_kv_heads;
    const int32_t tiles = shared_tiles(p.shared, run);
#pragma unroll
    for (int n = 0; n < kMaxSharedParts; ++n) units[n] += items * shared_parts(tiles, (most_tiles + n) / (n + 1));
  }
  int32_t* parts = sums + 2 * kWarps;  // [warps, kMaxSharedParts]
#pragma unroll
  for (int n = 0; n < kMaxSharedParts; ++n) {
    const int32_t sum = __reduce_add_sync(0xffffffffu, units[n]);
    if (lane == 0) parts[warp * kMaxSharedParts + n] = sum;
  }
  __syncthreads();
  int32_t mine = 0;
#pragma unroll
  for (int i = lane; i < kWarps * kMaxSharedParts; i += 32) mine += parts[i];
#pragma unroll
  for (int d = kMaxSharedParts; d < 32; d *= 2) mine += __shfl_xor_sync(0xffffffffu, mine, d);
  __syncthreads();  // The sums have been read.
  return best_division(mine, most_tiles, own * p.num_kv_heads, params.costs);
}

template <class Traits>
__global__ void __launch_bounds__(128 * Traits::kTeams, 1)
    decode_shared_kernel(const __grid_constant__ SharedDecodeParams params) {
  extern __shared__ __align__(1024) uint8_t panel_memory[];
  allow_next_kernel();
  wait_for_previous_kernel();
  const SharedDivision division = divide_blocks<Traits>(params, reinterpret_cast<int32_t*>(panel_memory));
  if (static_cast<int32_t>(blockIdx.x) < division.blocks) {
    using Pages = typename Traits::Pages;
    auto& shared = *reinterpret_cast<typename Pages::SharedStorage*>(panel_memory);
    SharedPagesBlock<Pages>(params.prefix, params.decode.shared, shared, division).run();
    return;
  }
  using Storage = typename Traits::SharedStorage;
  auto& shared = *reinterpret_cast<Storage*>(panel_memory + threadIdx.y * sizeof(Storage));
  if (threadIdx.x < Traits::kWarps) shared.later[threadIdx.x].count = 0;
  if (threadIdx.x == 0) {
    shared.first_block = Traits::kTeams * division.blocks;
    shared.part_tiles = division.part_tiles;
  }
  Traits::sync_block();
  // Opaque, and fewer registers are spilled.
  const uint32_t prefix = opaque(static_cast<uint32_t>(Traits::kTeams * sizeof(Storage)));
  DecodeBlock<Traits>(params.decode, shared, reinterpret_cast<int32_t*>(panel_memory + prefix)).work();
}

template <class Traits>
int32_t decode_shared_bytes(int32_t max_requests) {
  constexpr size_t kPages = sizeof(typename Traits::Pages::SharedStorage);
  constexpr size_t kTeams = Traits::kTeams * sizeof(typename Traits::SharedStorage);
  return std::max(static_cast<int32_t>(kPages), static_cast<int32_t>(kTeams) + decode_prefix_bytes(max_requests));
}

template <class Traits>
KernelImage decode_shared_image() {
  return {.function = reinterpret_cast<const void*>(&decode_shared_kernel<Traits>),
          .threads = Traits::kThreads,
          .shared_bytes = decode_shared_bytes<Traits>(0),
          .teams = Traits::kTeams};
}
}  // namespace kvant::attn::cuda
