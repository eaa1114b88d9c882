#pragma once

// Decode of requests that share leading pages, in one launch. Runs of requests with pages in common are items of the
// wgmma prefill kernel: the rows of all their requests, 128 an item, against the shared keys. Their own pages are items
// of the decode kernel, which starts behind the shared ones. Some blocks of the launch do the one, the others the
// other, in proportion to the work; a row's two parts are merged by whoever ends last. A block of the launch is several
// of the decode kernel's, its teams, so that it holds as many warps as wgmma needs. Limits: those of both kernels; no
// window.

#include <cstdint>

#include "attn/cuda/generic/decode_splitkv.cuh"
#include "attn/cuda/sm90/decode_shared.h"
#include "attn/cuda/sm90/shared_pages.cuh"

namespace kvant::attn::cuda {

/// What an item of the decode kernel costs beside its tiles, in tiles.
inline constexpr int32_t kItemTiles = 12;

template <class KCodec, class VCodec, int kHeadDim, int kRowTiles, bool kExact>
struct DecodeSharedTraits : DecodeTraits<KCodec, VCodec, kHeadDim, kRowTiles, kExact> {
  using Base = DecodeTraits<KCodec, VCodec, kHeadDim, kRowTiles, kExact>;
  using Params = SharingDecodeParams;
  static constexpr bool kShares = true;
  static constexpr bool kClusters = false;
  static constexpr bool kGuesses = false;  ///< How blocks divide takes lengths that are final.
  /// As many warps a multiprocessor as the decode kernel has; of bf16 three quarters, which leave registers for the
  /// loop over shared pages.
  static constexpr int kTeams = Base::kHalves ? 3 : Base::kMinBlocks == 4 ? 2 : Base::kMinBlocks;
  static constexpr int kResident = Base::kHalves ? 1 : Base::kMinBlocks / kTeams;
  static_assert(kTeams >= 2, "two warpgroups for shared pages");
  using Pages = SharedPagesTraits<KCodec::kBf16Math ? TileSource::kBf16 : TileSource::kQuantised, kHeadDim>;
  struct SharedStorage : Base::SharedStorage {
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

/// Over all threads of a block of the launch; `sums` is shared memory.
template <int kThreads, int kCount>
__device__ __forceinline__ void sum_over_block(int32_t (&value)[kCount], int32_t* sums) {
  const uint32_t thread = threadIdx.x + 128 * threadIdx.y;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    value[i] = __reduce_add_sync(0xffffffffu, value[i]);
    if (thread % 32 == 0) sums[thread / 32 * kCount + i] = value[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    value[i] = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) value[i] += sums[w * kCount + i];
  }
  __syncthreads();
}

/// The division with which both kinds of work should end soonest: so many parts an item, and as many blocks as take
/// them in whole rounds. Each lane of a warp looks at one.
__device__ __forceinline__ SharedDivision best_division(const int32_t (&units)[kMaxSharedParts], int32_t most_tiles,
                                                        int32_t own_tiles, const SharedCosts& costs) {
  static_assert(32 % kMaxSharedParts == 0);
  const auto grid = static_cast<int32_t>(gridDim.x), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t n = lane % kMaxSharedParts, rounds = lane / kMaxSharedParts + 1;
  SharedDivision mine = {0, units[0], (most_tiles + n) / (n + 1)};
#pragma unroll
  for (int k = 1; k < kMaxSharedParts; ++k)
    if (k == n) mine.units = units[k];
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

/// How many blocks the shared pages get; every block computes the same.
template <class Traits>
__device__ __noinline__ SharedDivision divide_blocks(const SharedDecodeParams& params, int32_t* sums) {
  const SharingDecodeParams& p = params.decode;
  if (p.shared.runs[0].num_requests == 0) return {0, 0, 1};
  constexpr int32_t kThreads = 128 * Traits::kTeams;
  const auto thread = static_cast<int32_t>(threadIdx.x + 128 * threadIdx.y);
  // Tiles of the longest run, and of requests' own pages with what an item costs beside them.
  int32_t most_tiles = 0, own[1] = {0};
  for (int32_t r = thread; r < p.num_requests; r += kThreads) {
    const SharedRun run = p.shared.runs[1 + r];
    const int32_t q_len = p.q_offsets[r + 1] - p.q_offsets[r];
    const int32_t length = owned_keys(p.kv_lens[r], p.cp_rank, p.cp_size, p.cp_interleave);
    const int32_t tiles = max((length - (run.num_pages << p.page_shift) + 15) / 16, 0);
    own[0] += (q_len * p.group + Traits::kRows - 1) / Traits::kRows * (tiles + kItemTiles);
    most_tiles = max(most_tiles, shared_tiles(p.shared, run));
  }
  sum_over_block<kThreads>(own, sums);
  most_tiles = __reduce_max_sync(0xffffffffu, most_tiles);
  if (thread % 32 == 0) sums[thread / 32] = most_tiles;
  __syncthreads();
  for (int32_t w = 0; w < kThreads / 32; ++w) most_tiles = max(most_tiles, sums[w]);
  __syncthreads();
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
  sum_over_block<kThreads>(units, sums);
  return best_division(units, most_tiles, own[0] * p.num_kv_heads, params.costs);
}

template <class Traits>
__global__ void __launch_bounds__(128 * Traits::kTeams, Traits::kResident)
    decode_shared_kernel(const __grid_constant__ SharedDecodeParams params) {
  extern __shared__ __align__(1024) uint8_t panel_memory[];
  allow_next_kernel();
  wait_for_previous_kernel();
  const SharedDivision division = divide_blocks<Traits>(params, reinterpret_cast<int32_t*>(panel_memory));
  if (static_cast<int32_t>(blockIdx.x) < division.blocks) {
    using Pages = typename Traits::Pages;
    auto& shared = *reinterpret_cast<typename Pages::SharedStorage*>(panel_memory);
    if (Pages::thread() < Pages::kThreads)
      SharedPagesBlock<Pages>(params.prefix, params.decode.shared, shared, division).run();
    return;
  }
  using Storage = typename Traits::SharedStorage;
  uint8_t* team = panel_memory + threadIdx.y * params.team_bytes;
  auto& shared = *reinterpret_cast<Storage*>(team);
  if (threadIdx.x == 0) {
    shared.first_block = Traits::kTeams * division.blocks;
    shared.part_tiles = division.part_tiles;
  }
  Traits::sync_block();
  DecodeBlock<Traits>(params.decode, shared, reinterpret_cast<int32_t*>(team + sizeof(Storage))).work();
}

template <class Traits>
KernelImage decode_shared_image() {
  return {.function = reinterpret_cast<const void*>(&decode_shared_kernel<Traits>),
          .threads = Traits::kThreads,
          .shared_bytes = static_cast<int32_t>(sizeof(typename Traits::Pages::SharedStorage)),
          .teams = Traits::kTeams};
}
template <class Traits>
int32_t decode_shared_team_bytes(int32_t max_requests) {
  return (static_cast<int32_t>(sizeof(typename Traits::SharedStorage)) + decode_prefix_bytes(max_requests) + 127) /
         128 * 128;
}

}  // namespace kvant::attn::cuda
