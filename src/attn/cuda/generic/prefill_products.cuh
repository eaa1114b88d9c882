#pragma once

// Both products of attention on mma.sync.

#include <cstdint>

#include "attn/cuda/common/matrix_ops.cuh"

namespace kvant::attn::cuda {

/// Operands in shared memory as Traits lays them out. A warp holds 16 * kRowTiles query rows, and kWarpDimV channels of
/// their values.
template <class Traits>
struct PrefillProducts {
  using QRows = typename Traits::QRows;
  using KRows = typename Traits::KRows;
  using VRows = typename Traits::VRows;
  static constexpr int kRowTiles = Traits::kRowTiles;
  static constexpr int kKeyTiles = Traits::kKeys / 8;
  static constexpr int kValueTiles = Traits::kWarpDimV / 8;

  /// Few rows are one warp's: blocks of a multiprocessor give them to different schedulers.
  __device__ __forceinline__ static int32_t first_row(int32_t warp) {
    if constexpr (kSpread) return 0;
    return 16 * kRowTiles * ((warp + static_cast<int32_t>(blockIdx.x)) % Traits::kWarps);
  }
  /// Of the warps that must take part together.
  __device__ __forceinline__ static int32_t first_row_together(int32_t first_row) { return first_row; }
  /// Channels of V that are a warp's.
  __device__ __forceinline__ static int32_t first_channel(int32_t warp) {
    return kSpread ? Traits::kWarpDimV * warp : 0;
  }
  __device__ __forceinline__ static void publish_operands() {}
  __device__ __forceinline__ static void release_queries() {
    if constexpr (kSpread) __syncthreads();
  }

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return Traits::kBf16Math ? pack_bf16(low, high) : pack_f16(low, high);
  }

  __device__ __forceinline__ static void score(uint32_t q, uint32_t k, int32_t first_row,
                                               float (&c)[kRowTiles][kKeyTiles][4]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
    q += QRows::offset(first_row + lane % 16, lane / 16);
    k += KRows::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int step = 0; step < Traits::kDimK / 16; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        load_matrices(a[m], QRows::move_chunk(q, 2 * step) + 16 * m * QRows::kRowBytes);
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        load_matrices(b, KRows::move_chunk(k, 2 * step) + 8 * n * KRows::kRowBytes);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma(c[m][n], a[m], b[0], b[1]);
          mma(c[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ static void accumulate(uint32_t v, const float (&c)[kRowTiles][kKeyTiles][4],
                                                    float (&acc)[kRowTiles][kValueTiles][4]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    v += VRows::offset(lane % 16, lane / 16);
    if constexpr (kSpread) v += first_channel(static_cast<int32_t>(threadIdx.x / 32)) / 64 * VRows::kEightChunks;
#pragma unroll
    for (int step = 0; step < Traits::kKeys / 16; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &c[m][2 * step + i / 2][2 * (i % 2)];
          a[m][i] = pack(pair[0], pair[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < kValueTiles; i += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, VRows::move_chunk(v, i) + 16 * step * VRows::kRowBytes);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma(acc[m][i], a[m], b[0], b[1]);
          mma(acc[m][i + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

 private:
  static constexpr bool kSpread = Traits::kSpread;
  static_assert(!kSpread || Traits::kWarpDimV % 64 == 0, "warps' channels start at whole swizzle patterns");

  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (Traits::kBf16Math)
      mma_bf16(d, a, b0, b1);
    else
      mma_f16(d, a, b0, b1);
  }
};

}  // namespace kvant::attn::cuda
