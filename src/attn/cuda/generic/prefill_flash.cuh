#pragma once

// Attention of prompts, chunks and wide verify blocks over paged KV of any format: mma.sync, SM80 and later.
//   q [tokens, q heads, Dk], out [tokens, q heads, Dv], fp32 inside. Rows of an item are query tokens by the heads of
//   one KV head; a tile of keys is expanded to f16 (copied, for 16-bit caches) once and serves all of them.
// Launch: a fixed grid of 128-thread blocks that read the lengths on the device. Many items are taken whole, as blocks
// become free; few are cut into equal shares of tiles, and the last block of an item merges its parts in order.
// Limits: Dk at least Dv; head dims up to the traits', in steps of 16.

#include <cstdint>

#include "attn/cuda/generic/prefill_block.cuh"
#include "attn/cuda/generic/prefill_products.cuh"

namespace kvant::attn::cuda {

template <TileSource kSource_, int kDimK_, int kDimV_, int kRows_>
struct PrefillTraits {
  static constexpr TileSource kSource = kSource_;
  static constexpr int kDimK = kDimK_, kDimV = kDimV_;
  static constexpr int kRows = kRows_;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  /// Heads this wide leave no registers for a row's values in one warp: its channels are spread over all of them, and
  /// every warp has the scores of all rows.
  static constexpr bool kSpread = kDimV > 256;
  static constexpr int kWarpDimV = kSpread ? kDimV / kWarps : kDimV;
  static constexpr int kRowTiles = kRows / (16 * (kSpread ? 1 : kWarps));  ///< Of a warp, 16 rows each.
  static constexpr int kKeys = kDimK > 128 ? 32 : 64;                      ///< Of a tile.
  static constexpr bool kBf16Math = kSource == TileSource::kBf16;
  static constexpr bool kConditioned = kSource == TileSource::kQuantised;
  static constexpr int kScanGroups = 32;
  /// Two blocks a multiprocessor hide each other's expansion, softmax and barriers.
  static constexpr int kMinBlocks = kSpread ? 1 : 2;

  using QRows = OperandRows<kDimK>;
  using KRows = OperandRows<kDimK>;
  using VRows = OperandRows<kDimV>;
  using OutRows = OperandRows<kDimV>;
  using Products = PrefillProducts<PrefillTraits>;
  /// All threads do everything together.
  static constexpr bool kRoles = false, kPipelined = false;
  static constexpr int kWorkers = kThreads, kQueryThreads = kThreads, kBringers = kThreads, kFirstBringer = 0;
  static constexpr int kRawStages = 1;
  static constexpr bool kRowsAtOnce = false;
  static constexpr uint32_t kKRawBytes = kConditioned ? kKeys * kDimK : 0;  ///< Of whole bytes, or 12 of 16 used.
  static constexpr uint32_t kVRawBytes = kConditioned ? kKeys * kDimV : 0;
  struct SharedStorage {
    alignas(128) uint8_t q[kRows * QRows::kRowBytes];  ///< Then rows on their way out.
    alignas(128) uint8_t k[2][kKeys * KRows::kRowBytes];
    alignas(128) uint8_t v[2][kKeys * VRows::kRowBytes];
    alignas(16) uint8_t raw[kRawStages][kConditioned ? kKRawBytes + kVRawBytes : 16];
    float bias[kConditioned ? kRows : 1];
    int8_t exponent[kBf16Math ? 1 : kRows];
    PrefillSegment segments[2];  ///< This item and the next.
    int32_t scan[kScanGroups + 1];
    int32_t next, is_last;
  };
  /// Of the block, and what it has beside threadIdx.x.
  __device__ __forceinline__ static uint32_t thread() { return threadIdx.x; }
  __device__ __forceinline__ static uint32_t thread_of_row() { return 0; }
  __device__ __forceinline__ static void sync_workers() { __syncthreads(); }

  static_assert(kSpread ? kRows % 16 == 0 : kRows % (16 * kWarps) == 0, "every warp holds whole row tiles");
  static_assert(kDimK >= kDimV, "output rows take the place of query rows");
  static_assert(kDimK % 16 == 0 && kDimV % 16 == 0, "MMA steps are 16 wide");
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    prefill_flash_kernel(const __grid_constant__ PrefillParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  PrefillBlock<Traits>(params, *reinterpret_cast<typename Traits::SharedStorage*>(memory)).run();
}

template <class Traits>
KernelImage prefill_flash_image() {
  return {.function = reinterpret_cast<const void*>(&prefill_flash_kernel<Traits>),
          .threads = Traits::kThreads,
          .shared_bytes = static_cast<int32_t>(sizeof(typename Traits::SharedStorage))};
}

}  // namespace kvant::attn::cuda
