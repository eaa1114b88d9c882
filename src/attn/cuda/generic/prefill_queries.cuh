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
  /// Threads of a row; spare ones idle. Of rows wider than 256 a thread has eight channels in each 256.
  static constexpr int kRowThreads = kDimK <= 64 ? 8 : kDimK <= 128 ? 16 : 32;
  static constexpr int kPieces = kDimK > 256 ? 2 : 1;
  static_assert(kDimK <= 8 * kRowThreads * kPieces, "a row is spread over one warp at most");
  using Row = float[kPieces][8];
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
    if constexpr (Traits::kRowsAtOnce) {
      if (p_.q_dtype != DType::kF32) return load_rows_at_once(s);
    }
#pragma unroll 4
    for (int i = 0; i < kRowRounds; ++i) load_row<false>(s, i);
  }

 private:
  /// Rows that kQueryThreads threads bring together.
  static constexpr int kRowsTogether = kRows * Traits::kQueryThreads / Traits::kWorkers;
  static constexpr int kRowRounds = kRowsTogether * kRowThreads / Traits::kQueryThreads;

  /// Asks for all rows before it looks at the first: nothing else hides how long they take to come.
  __device__ __forceinline__ void load_rows_at_once(const PrefillSegment& s) const {
    const int channel = 8 * chunk_of_thread();
    if constexpr (Traits::kPipelined) {
      // By way of the operand's place, in loops: this code runs once an item, and mostly for the first time.
      const uint32_t to = shared_address(shared_.q);
#pragma unroll 1
      for (int i = 0; i < kRowRounds; ++i) {
        const int row = row_of_round(i);
        const bool exists = row < s.num_rows && channel < p_.head_dim_k;
        copy_async_16_or_zero(
            to + QRows::offset(row, chunk_of_thread()),
            static_cast<const uint16_t*>(p_.q) + (exists ? q_row_index(s, row) * p_.head_dim_k + channel : 0), exists);
      }
      commit_copies();
      wait_copies<0>();
#pragma unroll 1
      for (int i = 0; i < kRowRounds; ++i) {
        const int row = row_of_round(i);
        keep_raw(s, row, load_shared_16(to + QRows::offset(row, chunk_of_thread())));
      }
    } else {
      uint4 raw[kRowRounds];
#pragma unroll
      for (int i = 0; i < kRowRounds; ++i) {
        const int row = row_of_round(i);
        raw[i] = make_uint4(0, 0, 0, 0);
        if (row < s.num_rows && channel < p_.head_dim_k)
          raw[i] = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p_.q) +
                                                   q_row_index(s, row) * p_.head_dim_k + channel);
      }
#pragma unroll
      for (int i = 0; i < kRowRounds; ++i) keep_raw(s, row_of_round(i), raw[i]);
    }
  }
  __device__ __forceinline__ void keep_raw(const PrefillSegment& s, int row, const uint4& raw) const {
    Row x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t pair = (&raw.x)[j];
      const float2 both = p_.q_dtype == DType::kBf16
                              ? make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u))
                              : __half22float2(*reinterpret_cast<const __half2*>(&pair));
      x[0][2 * j] = both.x, x[0][2 * j + 1] = both.y;
    }
    keep_row<false>(s, row, row < s.num_rows, x);
  }

  __device__ __forceinline__ static int chunk_of_thread() { return static_cast<int>(Traits::thread()) % kRowThreads; }
  __device__ __forceinline__ static int row_of_round(int round) {
    return static_cast<int>(Traits::thread()) / Traits::kQueryThreads * kRowsTogether +
           static_cast<int>(Traits::thread()) % Traits::kQueryThreads / kRowThreads +
           round * (Traits::kQueryThreads / kRowThreads);
  }

  template <bool kCondition>
  __device__ __forceinline__ void load_row(const PrefillSegment& s, int round) const {
    const int chunk = chunk_of_thread(), row = row_of_round(round);
    Row x = {};
    const bool exists = row < s.num_rows;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int channel = 8 * (chunk + kRowThreads * piece);
      if (exists && channel < p_.head_dim_k)
        load_eight(p_.q, p_.q_dtype, q_row_index(s, row) * p_.head_dim_k + channel, x[piece]);
    }
    keep_row<kCondition>(s, row, exists, x);
  }

  template <bool kCondition>
  __device__ __forceinline__ void keep_row(const PrefillSegment& s, int row, bool exists, Row& x) const {
    const int chunk = chunk_of_thread();
    if constexpr (kCondition)
      condition(s, row, chunk, exists, x);
    else if (Traits::kConditioned && chunk == 0)
      shared_.bias[row] = 0.0f;
    if constexpr (!Traits::kBf16Math) normalise(row, chunk, x);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      if (chunk + kRowThreads * piece >= QRows::kChunks) return;
      uint4 packed;
#pragma unroll
      for (int i = 0; i < 4; ++i) (&packed.x)[i] = Traits::Products::pack(x[piece][2 * i], x[piece][2 * i + 1]);
      store_shared_16(shared_address(shared_.q) + QRows::offset(row, chunk + kRowThreads * piece), packed);
    }
  }

  __device__ __forceinline__ static float sum_of_row(float x) {
#pragma unroll
    for (int d = 1; d < kRowThreads; d *= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
  }

  /// Balances and rotates the row, and notes its product with the keys' mean.
  __device__ __forceinline__ void condition(const PrefillSegment& s, int row, int chunk, bool exists, Row& x) const {
    const auto channel_of = [&](int piece) { return 8 * (chunk + kRowThreads * piece); };
    const auto mine = [&](int piece) { return exists && channel_of(piece) < p_.head_dim_k; };
    float bias = 0.0f;
    if (p_.mu != nullptr) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        if (!mine(piece)) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) bias += x[piece][i] * p_.mu[s.head * p_.head_dim_k + channel_of(piece) + i];
      }
      bias = sum_of_row(bias);
    }
    if (chunk == 0) shared_.bias[row] = bias;
    if (p_.z == nullptr) return;
    const int32_t block = p_.head_dim_k & -p_.head_dim_k;  // largest power of two that divides it, at least 16
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      if (mine(piece)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[piece][i] *= p_.z[s.head * p_.head_dim_k + channel_of(piece) + i];
      }
#pragma unroll
      for (int h = 1; h < 8; h *= 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if ((i & h) != 0) continue;
          const float a = x[piece][i], b = x[piece][i + h];
          x[piece][i] = a + b;
          x[piece][i + h] = a - b;
        }
      }
#pragma unroll
      for (int d = 1; d < kRowThreads; d *= 2) {
        if (8 * d >= block) break;
        const float sign = (chunk & d) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) x[piece][i] = fmaf(sign, x[piece][i], __shfl_xor_sync(0xffffffffu, x[piece][i], d));
      }
    }
    if constexpr (kPieces == 2) {
      if (block > 8 * kRowThreads) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float a = x[0][i], b = x[1][i];
          x[0][i] = a + b;
          x[1][i] = a - b;
        }
      }
    }
    const float factor = rsqrtf(static_cast<float>(block));
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
      for (int i = 0; i < 8; ++i) x[piece][i] *= factor;
  }

  /// A power of two brings the row into [1, 2), so that f16 loses nothing to its range.
  __device__ __forceinline__ void normalise(int row, int chunk, Row& x) const {
    float amax = 0.0f;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
      for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(x[piece][i]));
#pragma unroll
    for (int d = 1; d < kRowThreads; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
    const int32_t exponent = min(exponent_of(amax), 126);
    const float inverse = power_of_two(-exponent);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
      for (int i = 0; i < 8; ++i) x[piece][i] *= inverse;
    if (chunk == 0) shared_.exponent[row] = static_cast<int8_t>(exponent);
  }
};

}  // namespace kvant::attn::cuda
