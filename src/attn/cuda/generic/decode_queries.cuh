#pragma once

// Query rows as MMA operands. Row r of an item is query token r / group, head r % group of the KV head.

#include <cstdint>

#include "attn/cuda/generic/decode_work.cuh"

namespace kvant::attn::cuda {

namespace detail {

__device__ __forceinline__ float2 widen_q(DType dtype, uint32_t pair) {
  if (dtype == DType::kBf16) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace detail

/// Loads, conditions and packs the rows of an item.
template <class Traits>
class DecodeQueries : protected DecodeWork<Traits> {
 protected:
  using Base = DecodeWork<Traits>;
  using KCodec = typename Traits::KCodec;
  using VCodec = typename Traits::VCodec;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kRowTiles = Traits::kRowTiles;
  static constexpr int kRows = Traits::kRows;
  static constexpr int kSteps = Traits::kSteps;
  static constexpr int kTiles = Traits::kTiles;
  static constexpr int kLaneDims = KTile<typename Traits::KCodec, Traits::kHeadDim>::kLaneDims;
  using Base::acc_;
  using Base::Base;
  using Base::factor_;
  using Base::g_;
  using Base::lane_;
  using Base::p_;
  using Base::q_;
  using Base::reference;
  using Base::set_reference;
  using Base::shared_;
  using Base::sum_;
  using Base::t_;
  using Base::warp_;

  __device__ int64_t q_row_index(const detail::Segment& s, int32_t row) const {
    const int32_t num_q_heads = p_.num_kv_heads * p_.group;
    const int32_t token = detail::divide(row, p_.group);
    return (static_cast<int64_t>(s.q_begin) + token) * num_q_heads + s.head * p_.group + (row - token * p_.group);
  }
  __device__ int32_t num_rows(const detail::Segment& s) const { return s.q_len * p_.group - s.row_tile * kRows; }

  /// Row tiles that a warp prepares.
  static constexpr int kOwnTiles = Traits::kSharedRows ? 1 : kRowTiles;
  __device__ __forceinline__ int own_tile(int n) const { return Traits::kSharedRows ? warp_ : n; }

  /// Where the lane's 16-bit rows are.
  struct QueryRows {
    const uint16_t* from[kOwnTiles];
    bool exist[kOwnTiles];
  };
  __device__ __forceinline__ QueryRows query_rows(const detail::Segment& s) const {
    QueryRows rows;
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
      rows.from[n] = static_cast<const uint16_t*>(p_.q) + lane_row(s, n);
      rows.exist[n] = s.row_tile * kRows + 8 * own_tile(n) + g_ < s.q_len * p_.group;
    }
    return rows;
  }
  /// Starts to copy 16-bit rows to a stage, each lane what it will use itself; they wait there and not in registers.
  /// fp32 rows are read when they are used.
  __device__ __forceinline__ void copy_queries(const QueryRows& rows, uint32_t stage) const {
    if (p_.q_dtype == DType::kF32) [[unlikely]]
      return;
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n)
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        copy_async_16_by_l1(stage + 512 * (kLoads * n + i) + 16 * lane_, rows.from[n] + place(8 * i), rows.exist[n]);
  }
  static constexpr int kLoads = kSteps / 2;  ///< Of 16 bytes, a lane and row.
  static_assert(512 * kLoads * kOwnTiles <= Traits::kStageBytes, "a stage takes a warp's rows");
  /// Index of this lane's first channel of its row of row tile n, or of the last row beyond that; nobody reads what
  /// becomes of those.
  __device__ __forceinline__ int64_t lane_row(const detail::Segment& s, int n) const {
    const int32_t row = min(s.row_tile * kRows + 8 * own_tile(n) + g_, s.q_len * p_.group - 1);
    return q_row_index(s, row) * kHeadDim + kLaneDims * t_;
  }

  struct Scales {
    float k, v;
  };
  __device__ __forceinline__ Scales fetch_scales(const detail::Segment& s) const {
    const int32_t scale = p_.scale_count == 1 ? 0 : s.head;
    return {p_.k_scales == nullptr ? 1.0f : p_.k_scales[scale], p_.v_scales == nullptr ? 1.0f : p_.v_scales[scale]};
  }

  /// Conditions and packs the rows of each row tile, whose copies to `stage` have ended, and leaves the factors of rows
  /// 2t and 2t + 1 in the lane.
  __device__ __forceinline__ void start_queries(const detail::Segment& s, uint32_t stage, const Scales& scales) {
    const float k_factor = scales.k * static_cast<float>(1 << KCodec::kShift);
    set_factors(k_factor, scales.v * static_cast<float>(1 << VCodec::kShift));
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
      float x[4 * kSteps];
      load_row(s, n, stage, x);
      const float bias = condition_row(s, x);
      const float exponent = normalise_row(x);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint2 operand = make_uint2(pack(x[4 * step], x[4 * step + 1]), pack(x[4 * step + 2], x[4 * step + 3]));
        if constexpr (Traits::kSharedRows)
          shared_.q[warp_][step][lane_] = operand;
        else
          q_[n][step][0] = operand.x, q_[n][step][1] = operand.y;
      }
      if constexpr (Traits::kSharedRows) {
        const float row_bias = p_.softmax_scale * kLog2OfE * bias;
        if (t_ == 0) shared_.exponent[8 * warp_ + g_] = exponent;
#pragma unroll
        for (int w = 0; w < Traits::kWarps; ++w)
          if (t_ == 0) shared_.bias[w][8 * warp_ + g_] = row_bias;
      } else {
        start_rows(n, k_factor, exponent, bias);
      }
    }
    if constexpr (Traits::kSharedRows) {
      this->sync_block();
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) start_rows(n, k_factor);
    }
  }

  __device__ __forceinline__ void load_row(const detail::Segment& s, int n, uint32_t stage,
                                           float (&x)[4 * kSteps]) const {
    if (p_.q_dtype == DType::kF32) [[unlikely]] {
      const float* from = static_cast<const float*>(p_.q) + lane_row(s, n);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(from + place(4 * i));
        x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint4 eight = load_shared_16(stage + 512 * (kLoads * n + i) + 16 * lane_);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 two = detail::widen_q(p_.q_dtype, (&eight.x)[j]);
        x[8 * i + 2 * j] = two.x, x[8 * i + 2 * j + 1] = two.y;
      }
    }
  }

  /// Balances and rotates the row; returns its product with the keys' mean.
  __device__ __forceinline__ float condition_row(const detail::Segment& s, float (&x)[4 * kSteps]) const {
    float bias = 0.0f;
    if (p_.mu != nullptr) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) bias += x[i] * p_.mu[s.head * kHeadDim + channel(i)];
      bias += __shfl_xor_sync(0xffffffffu, bias, 1);
      bias += __shfl_xor_sync(0xffffffffu, bias, 2);
    }
    if (p_.z != nullptr) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) x[i] *= p_.z[s.head * kHeadDim + channel(i)];
      hadamard(x);
    }
    return bias;
  }

  /// A power of two brings the row into [1, 2), so that f16 loses nothing to its range; returns that power.
  __device__ __forceinline__ static float normalise_row(float (&x)[4 * kSteps]) {
    if constexpr (Traits::kBf16Math) {
      return 1.0f;
    } else {
      float amax = 0.0f;
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) amax = fmaxf(amax, fabsf(x[i]));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
      const uint32_t bits = __float_as_uint(amax) & 0x7f800000u;
      const float exponent = amax > 0.0f && bits < 0x7f800000u ? __uint_as_float(max(bits, 0x00800000u)) : 1.0f;
      const float inverse = __uint_as_float(0x7f000000u - __float_as_uint(exponent));
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) x[i] *= inverse;
      return exponent;
    }
  }

  /// Factors and empty accumulators of rows 2t and 2t + 1 of row tile n, whose lanes hold the exponent and bias of row
  /// g.
  __device__ __forceinline__ void start_rows(int n, float k_factor, float exponent, float bias) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float row_exponent = __shfl_sync(0xffffffffu, exponent, 4 * (2 * t_ + c));
      const float row_bias = __shfl_sync(0xffffffffu, bias, 4 * (2 * t_ + c));
      if (g_ == 0) shared_.bias[warp_][8 * n + 2 * t_ + c] = p_.softmax_scale * kLog2OfE * row_bias;
      __syncwarp();
      start_row(n, c, k_factor * row_exponent);
    }
    clear_sums(n);
  }
  __device__ __forceinline__ void start_rows(int n, float k_factor) {
#pragma unroll
    for (int c = 0; c < 2; ++c) start_row(n, c, k_factor * shared_.exponent[8 * n + 2 * t_ + c]);
    clear_sums(n);
  }
  __device__ __forceinline__ void start_row(int n, int c, float factor) {
    // Never 0, since a masked product is -inf.
    factor_[n][c] = fmaxf(p_.softmax_scale * kLog2OfE * factor, detail::kLeastFactor);
    set_reference(n, c, detail::kNoScore);
  }
  __device__ __forceinline__ void clear_sums(int n) {
    sum_[n][0] = sum_[n][1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) acc_[n][i][c] = 0.0f;
  }

  __device__ __forceinline__ void set_factors(float k, float v) {
    __syncwarp();
    if (lane_ == 0) shared_.k_factor[warp_] = k, shared_.v_factor[warp_] = v;
    __syncwarp();
  }
  /// From here on products and accumulators are of keys and values themselves, without the base format's scales.
  __device__ __forceinline__ void leave_base_units() {
    const float k_inverse = 1.0f / shared_.k_factor[warp_], v_factor = shared_.v_factor[warp_];
    set_factors(1.0f, 1.0f);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        factor_[n][j] = fmaxf(factor_[n][j] * k_inverse, detail::kLeastFactor);
        set_reference(n, j, reference(n, j));
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc_[n][i][j] *= v_factor;
    }
  }

  /// Channel of value i that this lane holds of a row: the order in which KTile hands out K.
  __device__ __forceinline__ int channel(int i) const { return kLaneDims * t_ + place(i); }
  __device__ __forceinline__ static constexpr int place(int i) {
    return i / kLaneDims * (4 * kLaneDims) + i % kLaneDims;
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
};

}  // namespace kvant::attn::cuda
