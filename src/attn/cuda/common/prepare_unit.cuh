#pragma once

#include <cstdint>

#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/append.h"
#include "core/float_bits.h"

// Bias, RMS norm and RoPE of a head whose row is spread over lanes, bit for bit as in attn/cpu/prepare_heads-inl.h.
namespace kvant::attn::cuda {

/// Rows of a warp on their way between lanes: RoPE pairs channels that may lie half a rotation apart.
template <int kElements>
struct UnitExchange {
  float values[kElements][32];  // by element of a lane, then lane: no two lanes meet in a bank
};

/// What a lane needs for its part of a row. All lanes of a warp take part in everything.
template <int kElements>
class UnitPreparation {
  /// With four elements a lane, what is needed is asked for before it is; with sixteen, it would take the registers
  /// that let blocks share a multiprocessor.
  static constexpr bool kAsksEarly = kElements == kQuadUnit;

 public:
  /// Asks for what no kernel of the step writes.
  __device__ __forceinline__ UnitPreparation(const PreparedAppendParams& params, const PrepareRows& rows,
                                             const RowUnit& unit, int64_t in_token)
      : params_(params), rows_(rows), unit_(unit), in_token_(in_token) {
    if constexpr (kAsksEarly) {
      load_bias(bias_);
      load_norm(norm_);
    }
  }

  __device__ __forceinline__ void load_step(uint32_t token) {
    token_ = token;
    if constexpr (kAsksEarly) load_angles(cosines_, sines_);
  }

  /// Not yet rounded.
  __device__ __forceinline__ void apply(UnitExchange<kElements>& exchange, float (&x)[kElements]) {
    if (rows_.bias != nullptr) {
      if constexpr (!kAsksEarly) load_bias(bias_);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = fl_add(x[i], bias_[i]);
    }
    if (rows_.norm != nullptr) {
      const float scale = norm_scale(x);
      if constexpr (!kAsksEarly) load_norm(norm_);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = fl_mul(fl_mul(x[i], scale), norm_[i]);
    }
    if (rows_.num_pairs == 0) return;
    if constexpr (!kAsksEarly) load_angles(cosines_, sines_);
    turn(exchange, x);
  }

 private:
  __device__ __forceinline__ uint32_t first_channel() const { return unit_.block * kElements; }

  __device__ __forceinline__ void load_bias(float (&bias)[kElements]) const {
    if (unit_.live && rows_.bias != nullptr) load_unit(rows_.bias + in_token_, DType::kF32, bias);
  }
  __device__ __forceinline__ void load_norm(float (&norm)[kElements]) const {
    if (unit_.live && rows_.norm != nullptr) load_unit(rows_.norm + first_channel(), DType::kF32, norm);
  }
  /// Of channels that RoPE does not turn: any.
  __device__ __forceinline__ void load_angles(float (&cosines)[kElements], float (&sines)[kElements]) const {
    const uint32_t num_pairs = rows_.num_pairs;
    if (!unit_.live || first_channel() >= 2 * num_pairs) return;
    const int64_t first = static_cast<int64_t>(token_) * num_pairs;
    if (pairs_lanes()) {
      const uint32_t pair = first_channel() < num_pairs ? first_channel() : first_channel() - num_pairs;
      load_unit(params_.cosines + first + pair, DType::kF32, cosines);
      load_unit(params_.sines + first + pair, DType::kF32, sines);
      return;
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const uint32_t channel = min(first_channel() + i, 2 * num_pairs - 1);
      const uint32_t pair = !params_.halves ? channel / 2 : channel < num_pairs ? channel : channel - num_pairs;
      cosines[i] = params_.cosines[first + pair];
      sines[i] = params_.sines[first + pair];
    }
  }

  /// Sum of squares over the row: neighbours first, then neighbouring sums.
  __device__ __forceinline__ float square_sum(const float (&x)[kElements]) const {
    float sums[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) sums[i] = fl_mul(x[i], x[i]);
#pragma unroll
    for (int count = kElements / 2; count >= 1; count /= 2) {
#pragma unroll
      for (int i = 0; i < count; ++i) sums[i] = fl_add(sums[2 * i], sums[2 * i + 1]);
    }
    float sum = sums[0];
    const uint32_t units = rows_.grid.row_units, block = unit_.block;
    for (uint32_t distance = 1; distance < units; distance *= 2) {
      const float next = __shfl_down_sync(0xffffffffu, sum, distance);
      if (block % (2 * distance) == 0 && block + distance < units) sum = fl_add(sum, next);
    }
    return __shfl_sync(0xffffffffu, sum, static_cast<int>(threadIdx.x % 32 - block));
  }

  __device__ __forceinline__ float norm_scale(const float (&x)[kElements]) const {
    const float mean = fl_div(square_sum(x), static_cast<float>(rows_.grid.row_units * kElements));
    return fl_div(1.0f, __fsqrt_rn(fl_add(mean, params_.epsilon)));
  }

  /// Whether partners are the same elements of another lane.
  __device__ __forceinline__ bool pairs_lanes() const { return params_.halves && rows_.num_pairs % kElements == 0; }

  __device__ __forceinline__ float turned(float x, float other, bool is_first, int i) const {
    const float part = fl_mul(other, sines_[i]);
    return fl_add(fl_mul(x, cosines_[i]), is_first ? -part : part);
  }

  __device__ __forceinline__ void turn(UnitExchange<kElements>& exchange, float (&x)[kElements]) const {
    const uint32_t lane = threadIdx.x % 32, num_pairs = rows_.num_pairs;
    if (pairs_lanes()) {
      const bool turns = first_channel() < 2 * num_pairs, is_first = first_channel() < num_pairs;
      const uint32_t distance = turns ? num_pairs / kElements : 0;
      const auto partner = static_cast<int>(is_first ? lane + distance : lane - distance);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float other = __shfl_sync(0xffffffffu, x[i], partner);
        if (turns) x[i] = turned(x[i], other, is_first, i);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) exchange.values[i][lane] = x[i];
    __syncwarp();
    const uint32_t first_lane = lane - unit_.block, distance = params_.halves ? num_pairs : 1;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const uint32_t channel = first_channel() + i;
      const bool is_first = params_.halves ? channel < num_pairs : channel % 2 == 0;
      const uint32_t partner = is_first ? channel + distance : channel - distance;
      // A spare lane's partner may lie beyond the warp.
      if (!unit_.live || channel >= 2 * num_pairs) continue;
      x[i] = turned(x[i], exchange.values[partner % kElements][first_lane + partner / kElements], is_first, i);
    }
  }

  const PreparedAppendParams& params_;
  const PrepareRows& rows_;
  const RowUnit unit_;
  const int64_t in_token_;
  uint32_t token_ = 0;
  float bias_[kElements], norm_[kElements], cosines_[kElements], sines_[kElements];
};

}  // namespace kvant::attn::cuda
