#pragma once

// Query rows as MMA operands. Row r of an item is query token r / group, head r % group of the KV head.

#include <cstdint>

#include "attn/cuda/generic/decode_work.cuh"

namespace kvant::attn::cuda {

namespace detail {

/// Four adjacent elements as they are: 16-bit ones fill x and y.
__device__ __forceinline__ uint4 fetch_q(const void* q, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return *reinterpret_cast<const uint4*>(static_cast<const float*>(q) + index);
  const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(q) + index);
  return make_uint4(raw.x, raw.y, 0, 0);
}
__device__ __forceinline__ float4 widen_q(DType dtype, uint4 raw) {
  if (dtype == DType::kF32)
    return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w));
  if (dtype == DType::kBf16) {
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
                       __uint_as_float(raw.y & 0xffff0000u));
  }
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
  return make_float4(low.x, low.y, high.x, high.y);
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
    return (static_cast<int64_t>(s.q_begin) + row / p_.group) * num_q_heads + s.head * p_.group + row % p_.group;
  }
  __device__ int32_t num_rows(const detail::Segment& s) const { return s.q_len * p_.group - s.row_tile * kRows; }

  /// Row tiles that a warp prepares.
  static constexpr int kOwnTiles = Traits::kSharedRows ? 1 : kRowTiles;
  __device__ __forceinline__ int own_tile(int n) const { return Traits::kSharedRows ? warp_ : n; }

  /// What an item starts with, on its way from memory.
  struct Fetched {
    uint4 q[kOwnTiles][kSteps];
    float k_scale, v_scale;
  };
  __device__ __forceinline__ Fetched fetch_queries(const detail::Segment& s) const {
    Fetched fetched;
    const int32_t scale = p_.scale_count == 1 ? 0 : s.head;
    fetched.k_scale = p_.k_scales == nullptr ? 1.0f : p_.k_scales[scale];
    fetched.v_scale = p_.v_scales == nullptr ? 1.0f : p_.v_scales[scale];
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
      const int32_t row = s.row_tile * kRows + 8 * own_tile(n) + g_;
      const bool valid = row < s.q_len * p_.group;
      const int64_t first = valid ? q_row_index(s, row) * kHeadDim : 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        fetched.q[n][step] =
            valid ? detail::fetch_q(p_.q, p_.q_dtype, first + channel(4 * step)) : make_uint4(0, 0, 0, 0);
    }
    return fetched;
  }

  /// Conditions and packs the rows of each row tile, and leaves the factors of rows 2t and 2t + 1 in the lane.
  __device__ __forceinline__ void start_queries(const detail::Segment& s, const Fetched& fetched) {
    const float k_factor = fetched.k_scale * static_cast<float>(1 << KCodec::kShift);
    set_factors(k_factor, fetched.v_scale * static_cast<float>(1 << VCodec::kShift));
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
      float x[4 * kSteps];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float4 four = detail::widen_q(p_.q_dtype, fetched.q[n][step]);
        x[4 * step] = four.x, x[4 * step + 1] = four.y, x[4 * step + 2] = four.z, x[4 * step + 3] = four.w;
      }
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
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) start_rows(n, k_factor);
    }
  }

  /// Balances and rotates the row; returns its product with the keys' mean.
  __device__ __forceinline__ float condition_row(const detail::Segment& s, float (&x)[4 * kSteps]) const {
    float bias = 0.0f;
    if (p_.mu != nullptr) {
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) bias += x[i] * p_.mu[s.head * kHeadDim + channel(i)];
      bias += __shfl_xor_sync(0xffffffffu, bias, 1);
      bias += __shfl_xor_sync(0xffffffffu, bias, 2);
    }
    if (p_.z != nullptr) {
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
  __device__ __forceinline__ int channel(int i) const {
    return i / kLaneDims * (4 * kLaneDims) + kLaneDims * t_ + i % kLaneDims;
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
