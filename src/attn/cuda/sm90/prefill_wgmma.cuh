#pragma once

// Attention of prompts, chunks and wide verify blocks on Hopper's warpgroup MMA. All but the products and the operands'
// layout is the generic kernel's: see generic/prefill_flash.cuh. A warpgroup holds 64 query rows; scores take Q and K
// from shared memory, values take P from registers.
// Limits: head dims up to 64 or 128, K and V alike.

#include <cstdint>
#include <type_traits>

#include "attn/cuda/generic/prefill_block.cuh"
#include "attn/cuda/sm90/pipelined_roles.cuh"
#include "attn/cuda/sm90/warpgroup_mma.cuh"

namespace kvant::attn::cuda {

template <class Traits>
struct WarpgroupProducts {
  using KRows = typename Traits::KRows;
  using QRows = typename Traits::QRows;
  using VRows = typename Traits::VRows;
  static constexpr int kKeyTiles = Traits::kKeys / 8;
  static constexpr int kValueTiles = Traits::kDimV / 8;
  static constexpr int kWarpgroupRows = 64;
  static_assert(Traits::kKeys == 64, "the score MMA is 64 keys wide");

  __device__ __forceinline__ static int32_t first_row(int32_t warp) { return 16 * warp; }
  __device__ __forceinline__ static int32_t first_row_together(int32_t first_row) {
    return first_row / kWarpgroupRows * kWarpgroupRows;
  }
  __device__ __forceinline__ static int32_t first_channel(int32_t) { return 0; }
  __device__ __forceinline__ static void publish_operands() { fence_shared_for_mma(); }
  /// Query rows may be overwritten once no warp of the group is at a score.
  __device__ __forceinline__ static void release_queries() {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + static_cast<int>(Traits::thread() / 128)) : "memory");
  }

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return Traits::kBf16Math ? pack_bf16(low, high) : pack_f16(low, high);
  }

  __device__ __forceinline__ static void score(uint32_t q, uint32_t k, int32_t first_row, float (&c)[1][kKeyTiles][4]) {
    start_scores(q, k, first_row, c);
    wait_warpgroup_mma(c[0]);
  }
  __device__ __forceinline__ static void accumulate(uint32_t v, const float (&c)[1][kKeyTiles][4],
                                                    float (&acc)[1][kValueTiles][4]) {
    Weights weights;
    pack(c, weights);
    start_values(v, weights, acc);
    wait_warpgroup_mma(acc[0]);
  }

  // The same in steps. Batches end in the order in which they start.
  using Weights = uint32_t[Traits::kKeys / 16][4];
  __device__ __forceinline__ static void start_scores(uint32_t q, uint32_t k, int32_t first_row,
                                                      float (&c)[1][kKeyTiles][4]) {
    q += 128 * first_row_together(first_row);
    const uint64_t from_q = panel_descriptor(__shfl_sync(0xffffffffu, q, 0), 0);
    const uint64_t from_k = panel_descriptor(__shfl_sync(0xffffffffu, k, 0), 0);
    start_warpgroup_mma();
#pragma unroll
    for (int step = 0; step < Traits::kDimK / 16; ++step) {
      // Sixteen channels are 32 bytes of a panel's rows; descriptors count in 16 bytes.
      const uint64_t a = from_q + (step / 4 * QRows::kPanelBytes + step % 4 * 32) / 16;
      const uint64_t b = from_k + (step / 4 * KRows::kPanelBytes + step % 4 * 32) / 16;
      warpgroup_mma<Traits::kBf16Math>(c[0], a, b, step > 0);
    }
    commit_warpgroup_mma();
  }
  __device__ __forceinline__ static void pack(const float (&c)[1][kKeyTiles][4], Weights& weights) {
#pragma unroll
    for (int step = 0; step < Traits::kKeys / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &c[0][2 * step + i / 2][2 * (i % 2)];
        weights[step][i] = pack(pair[0], pair[1]);
      }
    }
  }
  /// Unless `add`, what acc was is of no account.
  __device__ __forceinline__ static void start_values(uint32_t v, const Weights& weights,
                                                      float (&acc)[1][kValueTiles][4], bool add = true) {
    const uint64_t from_v = panel_descriptor(__shfl_sync(0xffffffffu, v, 0), VRows::kPanelBytes);
    start_warpgroup_mma();
#pragma unroll
    for (int step = 0; step < Traits::kKeys / 16; ++step) {
      // Sixteen keys are two patterns of eight rows.
      warpgroup_mma_registers<Traits::kBf16Math>(acc[0], weights[step], from_v + step * 2048 / 16, add || step > 0);
    }
    commit_warpgroup_mma();
  }
};

/// kBringers_ threads bring tiles and the others attend to 64 rows a warpgroup; 0: all do everything.
template <TileSource kSource_, int kDimK_, int kDimV_, int kRows_, int kBringers_ = (kRows_ > 128 ? 128 : 0)>
struct PrefillWgmmaTraits {
  static constexpr TileSource kSource = kSource_;
  static constexpr int kDimK = kDimK_, kDimV = kDimV_, kWarpDimV = kDimV;
  static constexpr int kRows = kRows_;
  static constexpr int kRowTiles = 1;
  static constexpr int kKeys = 64;
  static constexpr bool kBf16Math = kSource == TileSource::kBf16;
  static constexpr bool kConditioned = kSource == TileSource::kQuantised;
  static constexpr int kScanGroups = 32;
  /// Many rows: one warpgroup brings tiles, the others attend to 64 rows each. Of fewer rows all threads do everything
  /// together, and two blocks a multiprocessor hide each other's products, expansion, softmax and barriers.
  static constexpr bool kRoles = kBringers_ > 0;
  static constexpr int kWorkers = 2 * kRows, kFirstBringer = kRoles ? kWorkers : 0;
  static constexpr int kBringers = kRoles ? kBringers_ : kWorkers;
  /// What is known of tiles' format when the program is compiled.
  static constexpr UnitFormat kUnits = kSource == TileSource::kQuantised ? UnitFormat::kAny : UnitFormat::k16Bits;
  static constexpr int kQueryThreads = kRoles ? 128 : kWorkers;
  static constexpr int kThreads = kFirstBringer + kBringers;
  static constexpr int kWarps = kThreads / 32;
  /// A worker's next scores and last values are products under way at the same time, for which bringers leave it
  /// registers.
  static constexpr bool kPipelined = kRoles;
  /// Whether code apart takes an item's first tile. It is not worth what it takes to load it where items are few.
  static constexpr bool kPeeled = true;
  /// Of a thread in either role, where all start with 128.
  static constexpr int kBringerRegisters = kBringers > 128 ? 88 : 80;
  static constexpr int kWorkerRegisters = 128 + (128 - kBringerRegisters) * kBringers / kWorkers / 8 * 8;
  static constexpr bool kRowsAtOnce = kRows != 128;  ///< There it would cost spilled registers.
  static constexpr int kMinBlocks = kRoles ? 1 : 2;
  static constexpr int kStages = kRoles ? 4 : 2;
  static constexpr int kRawStages = kRoles ? 2 : 1, kSegments = kRoles ? 4 : 2;

  using QRows = PanelRows<kDimK, kRows>;
  using KRows = PanelRows<kDimK, kKeys>;
  using VRows = PanelRows<kDimV, kKeys>;
  using OutRows = PanelRows<kDimV, kRows>;
  using Products = WarpgroupProducts<PrefillWgmmaTraits>;

  static constexpr uint32_t kKRawBytes = kConditioned ? kKeys * kDimK : 0;
  static constexpr uint32_t kVRawBytes = kConditioned ? kKeys * kDimV : 0;
  struct SharedStorage {
    alignas(1024) uint8_t q[kRows * QRows::kRowBytes];  ///< Then rows on their way out.
    alignas(1024) uint8_t k[kStages][kKeys * KRows::kRowBytes];
    alignas(1024) uint8_t v[kStages][kKeys * VRows::kRowBytes];
    alignas(128) uint8_t raw[kRawStages][kConditioned ? kKRawBytes + kVRawBytes : 16];
    float bias[kConditioned ? kRows : 1];
    int8_t exponent[kBf16Math ? 1 : kRows];
    PrefillSegment segments[kSegments];  ///< This item and the next.
    int32_t scan[kScanGroups + 1];
    int32_t next, is_last;
    uint64_t phases[kRoles ? 2 * (kStages + kSegments) : 1];  ///< See PipelinedRoles.
    uint64_t raw_phases[kRoles && kConditioned ? kRawStages * kBringers / 32 : 1];
  };
  /// Of the block, and what it has beside threadIdx.x.
  __device__ __forceinline__ static uint32_t thread() { return threadIdx.x; }
  __device__ __forceinline__ static uint32_t thread_of_row() { return 0; }
  __device__ __forceinline__ static void sync_workers() {
    if constexpr (kRoles)
      sync_named<kWorkers>(5);
    else
      __syncthreads();
  }

  static_assert(kRows % 64 == 0, "whole warpgroups");
  static_assert(kDimK == kDimV, "output rows take the place of query rows");
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    prefill_wgmma_kernel(const __grid_constant__ PrefillParams params) {
  extern __shared__ __align__(1024) uint8_t panel_memory[];
  using Block = std::conditional_t<Traits::kRoles, PipelinedPrefill<Traits>, PrefillBlock<Traits>>;
  Block(params, *reinterpret_cast<typename Traits::SharedStorage*>(panel_memory)).run();
}

template <class Traits>
KernelImage prefill_wgmma_image() {
  return {.function = reinterpret_cast<const void*>(&prefill_wgmma_kernel<Traits>),
          .threads = Traits::kThreads,
          .shared_bytes = static_cast<int32_t>(sizeof(typename Traits::SharedStorage))};
}

}  // namespace kvant::attn::cuda
