#pragma once

// Query rows as an operand in shared memory. Row r of a request is query token r / group, head r % group of the KV
// head.

#include <cstdint>

#include "attn/cuda/common/matrix_ops.cuh"
#include "attn/cuda/generic/prefill_work.cuh"

namespace kvant::attn::cuda {

/// Loads, conditions and rounds the rows of an item.
template <class Traits>
class PrefillQueries : protected PrefillWork<Traits> {
 protected:
  using Base = PrefillWork<Traits>;
  using QRows = typename Traits::QRows;
  static constexpr int kRows = Traits::kRows;
  static constexpr int kDimK = Traits::kDimK;
  /// Threads of a row, eight channels each; spare ones idle.
  static constexpr int kRowThreads = kDimK <= 64 ? 8 : kDimK <= 128 ? 16 : 32;
  static_assert(kDimK <= 8 * kRowThreads, "a row is spread over one warp at most");
  using Base::Base;
  using Base::p_;
  using Base::q_row_index;
  using Base::shared_;

  __device__ void load_queries(const PrefillSegment& s) const {
    if constexpr (Traits::kConditioned) {
      if (p_.mu != nullptr || p_.z != nullptr) {
#pragma unroll 1
        for (int i = 0; i < kRowRounds; ++i) load_row<true>(s, i);
        return;
      }
    }
#pragma unroll 4
    for (int i = 0; i < kRowRounds; ++i) load_row<false>(s, i);
  }

 private:
  static constexpr int kRowRounds = kRows * kRowThreads / Traits::kThreads;

  template <bool kCondition>
  __device__ __forceinline__ void load_row(const PrefillSegment& s, int round) const {
    const int chunk = static_cast<int>(Traits::thread()) % kRowThreads;
    const int row = static_cast<int>(Traits::thread()) / kRowThreads + round * (Traits::kThreads / kRowThreads);
    float x[8] = {};
    const bool mine = row < s.num_rows && 8 * chunk < p_.head_dim_k;
    if (mine) load_eight(p_.q, p_.q_dtype, q_row_index(s, row) * p_.head_dim_k + 8 * chunk, x);
    if constexpr (kCondition)
      condition(s, row, chunk, mine, x);
    else if (Traits::kConditioned && chunk == 0)
      shared_.bias[row] = 0.0f;
    if constexpr (!Traits::kBf16Math) normalise(row, chunk, x);
    if (chunk >= QRows::kChunks) return;
    uint4 packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) (&packed.x)[i] = Traits::Products::pack(x[2 * i], x[2 * i + 1]);
    store_shared_16(shared_address(shared_.q) + QRows::offset(row, chunk), packed);
  }

  __device__ __forceinline__ static float sum_of_row(float x) {
#pragma unroll
    for (int d = 1; d < kRowThreads; d *= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
  }

  /// Balances and rotates the row, and notes its product with the keys' mean.
  __device__ __forceinline__ void condition(const PrefillSegment& s, int row, int chunk, bool mine,
                                            float (&x)[8]) const {
    const int32_t first = s.head * p_.head_dim_k + 8 * chunk;
    float bias = 0.0f;
    if (p_.mu != nullptr) {
      if (mine) {
#pragma unroll
        for (int i = 0; i < 8; ++i) bias += x[i] * p_.mu[first + i];
      }
      bias = sum_of_row(bias);
    }
    if (chunk == 0) shared_.bias[row] = bias;
    if (p_.z == nullptr) return;
    if (mine) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= p_.z[first + i];
    }
    const int32_t block = p_.head_dim_k & -p_.head_dim_k;  // largest power of two that divides it, at least 16
#pragma unroll
    for (int h = 1; h < 8; h *= 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if ((i & h) != 0) continue;
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
#pragma unroll
    for (int d = 1; d < kRowThreads; d *= 2) {
      if (8 * d >= block) break;
      const float sign = (chunk & d) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = fmaf(sign, x[i], __shfl_xor_sync(0xffffffffu, x[i], d));
    }
    const float factor = rsqrtf(static_cast<float>(block));
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= factor;
  }

  /// A power of two brings the row into [1, 2), so that f16 loses nothing to its range.
  __device__ __forceinline__ void normalise(int row, int chunk, float (&x)[8]) const {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(x[i]));
#pragma unroll
    for (int d = 1; d < kRowThreads; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
    const int32_t exponent = min(exponent_of(amax), 126);
    const float inverse = power_of_two(-exponent);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= inverse;
    if (chunk == 0) shared_.exponent[row] = static_cast<int8_t>(exponent);
  }
};

}  // namespace kvant::attn::cuda
