#pragma once

// Decode of requests that share leading pages, in one launch. Runs of requests with pages in common are items of the
// wgmma prefill kernel: the rows of all their requests, 128 an item, against the shared keys. Their own pages are items
// of the decode kernel, which starts behind the shared ones. Some blocks of the launch do the one, the others the other,
// in proportion to the work; a row's two parts are merged by whoever ends last.
// A block of the launch is several of the decode kernel's, its teams, so that it holds as many warps as wgmma needs.
// Limits: those of both kernels; no window.

#include <cstdint>

#include "attn/cuda/generic/decode_splitkv.cuh"
#include "attn/cuda/sm90/decode_shared.h"
#include "attn/cuda/sm90/prefill_wgmma.cuh"

namespace kvant::attn::cuda {

/// Items of shared pages; a block's first 256 threads.
template <TileSource kSource, int kHeadDim>
struct SharedPagesTraits : PrefillWgmmaTraits<kSource, kHeadDim, kHeadDim, kSharedItemRows> {
  static constexpr bool kShares = true;
  using Products = WarpgroupProducts<SharedPagesTraits>;
  static constexpr int kWarps = kSharedItemRows / 16;

  __device__ __forceinline__ static uint32_t thread() { return threadIdx.x + thread_of_row(); }
  __device__ __forceinline__ static uint32_t thread_of_row() { return 128 * threadIdx.y; }

  /// An item's rows are written: tells their requests.
  __device__ static void settle(const SharedRows& p, const PrefillSegment& s) {
    __syncthreads();
    const int32_t count = p.runs[1 + s.request].num_requests;
    const int32_t first_row = s.row_tile * kSharedItemRows, last_row = first_row + s.num_rows - 1;
    const auto warp = static_cast<int32_t>(thread() / 32), lane = static_cast<int32_t>(thread() % 32);
    for (int32_t first = s.request; first < s.request + count; first += 32 * kWarps) {
      const int32_t request = first + kWarps * lane + warp;
      bool is_last = false;
      if (request < s.request + count) {
        const RowsInRun rows = rows_in_run(p, request);
        if (rows.first <= last_row && rows.last >= first_row && rows.first <= rows.last)
          is_last = arrive_at_shared(p, request, s.head);
      }
      const uint32_t all_last = __ballot_sync(0xffffffffu, is_last);
      __syncwarp();  // What one lane has seen written all may read.
      for (uint32_t last = all_last; last != 0; last &= last - 1)
        merge_shared_rows<kHeadDim>(p, first + kWarps * (__ffs(static_cast<int>(last)) - 1) + warp, s.head, lane, 32);
    }
  }
};

template <class KCodec, class VCodec, int kHeadDim, int kRowTiles, bool kExact>
struct DecodeSharedTraits : DecodeTraits<KCodec, VCodec, kHeadDim, kRowTiles, kExact> {
  using Base = DecodeTraits<KCodec, VCodec, kHeadDim, kRowTiles, kExact>;
  using Params = SharingDecodeParams;
  static constexpr bool kShares = true;
  static constexpr bool kClusters = false;
  /// As many warps a multiprocessor as the decode kernel has.
  static constexpr int kTeams = Base::kMinBlocks == 4 ? 2 : Base::kMinBlocks;
  static constexpr int kResident = Base::kMinBlocks / kTeams;
  static_assert(kTeams >= 2, "two warpgroups for shared pages");
  using Pages = SharedPagesTraits<KCodec::kBf16Math ? TileSource::kBf16 : TileSource::kQuantised, kHeadDim>;
  struct SharedStorage : Base::SharedStorage {
    int32_t first_block;  ///< Blocks of the decode kernel that other work has taken the place of.
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

/// How many blocks the shared pages get; every block computes the same. `sums` is shared memory.
template <class Traits>
__device__ __noinline__ int32_t blocks_for_shared_pages(const SharedDecodeParams& params, int2* sums) {
  const SharingDecodeParams& p = params.decode;
  if (p.shared.runs[0].num_requests == 0) return 0;
  constexpr int32_t kThreads = 128 * Traits::kTeams;
  const auto thread = static_cast<int32_t>(threadIdx.x + 128 * threadIdx.y);
  int32_t pages = 0, own = 0;
  for (int32_t r = thread; r < p.num_requests; r += kThreads) {
    const SharedRun run = p.shared.runs[1 + r];
    const int32_t q_begin = p.q_offsets[r], q_len = p.q_offsets[r + 1] - q_begin;
    const int32_t keys = run.num_pages << p.page_shift;
    const int32_t length = owned_keys(p.kv_lens[r], p.cp_rank, p.cp_size, p.cp_interleave);
    own += (q_len * p.group + Traits::kRows - 1) / Traits::kRows * max((length - keys + 15) / 16, 0);
    if (run.num_requests == 0 || run.first_request != r) continue;
    const int32_t rows = (p.q_offsets[r + run.num_requests] - q_begin) * p.group;
    pages += (rows + kSharedItemRows - 1) / kSharedItemRows * ((keys + Traits::Pages::kKeys - 1) / Traits::Pages::kKeys);
  }
  pages = __reduce_add_sync(0xffffffffu, pages), own = __reduce_add_sync(0xffffffffu, own);
  if (thread % 32 == 0) sums[thread / 32] = make_int2(pages, own);
  __syncthreads();
  pages = own = 0;
  for (int32_t w = 0; w < kThreads / 32; ++w) pages += sums[w].x, own += sums[w].y;
  __syncthreads();
  const auto grid = static_cast<int32_t>(gridDim.x);
  const float cost = static_cast<float>(pages) * params.tile_cost;
  const auto share = static_cast<int32_t>(static_cast<float>(grid) * cost / (cost + static_cast<float>(own)) + 0.5f);
  return min(max(share, 1), grid - 1);
}

template <class Traits>
__global__ void __launch_bounds__(128 * Traits::kTeams, Traits::kResident)
    decode_shared_kernel(const __grid_constant__ SharedDecodeParams params) {
  extern __shared__ __align__(1024) uint8_t panel_memory[];
  allow_next_kernel();
  wait_for_previous_kernel();
  const int32_t blocks = blocks_for_shared_pages<Traits>(params, reinterpret_cast<int2*>(panel_memory));
  if (static_cast<int32_t>(blockIdx.x) < blocks) {
    using Pages = typename Traits::Pages;
    if (Pages::thread() < Pages::kThreads)
      PrefillBlock<Pages>(params.prefix, *reinterpret_cast<typename Pages::SharedStorage*>(panel_memory)).run(blocks);
    return;
  }
  using Storage = typename Traits::SharedStorage;
  uint8_t* team = panel_memory + threadIdx.y * params.team_bytes;
  auto& shared = *reinterpret_cast<Storage*>(team);
  shared.first_block = Traits::kTeams * blocks;  // Every thread writes the same, so that it has seen it.
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
