#pragma once

// one_row_kernel: y = W x. A block owns four outputs and its warps share each of their rows, so that all of a short
// row is asked for at once and blocks come and go in many small waves: a warp that walked a row alone would wait for
// memory once a step with nothing else to do. Weights are read once, 16 bytes a lane, the first ones before the kernel
// before this one has ended; x comes from cache. Sums are fp32, per lane, over the warp, then over warps in order.

#include <cstdint>

#include <cuda_fp8.h>

#include "ops/cuda/bf16_vector.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/linear.h"

namespace kvant::ops::cuda {

constexpr int kOneRowOutputs = 4;  // of a block

/// A vector is what a lane reads of an output's weight at a time: 16 bytes.
struct OneRowShape {
  void* y;  // [out_features]
  int32_t out_features;
  int32_t vectors;  // of a row
  LinearOutput output;
};

/// bf16 times bf16.
struct OneRowParams : OneRowShape {
  const Bf16x8* weight;  // [out_features, vectors]
  const Bf16x8* x;       // [vectors]
};

/// e4m3 times e4m3, with scales of groups of kFp8Group.
struct OneFp8RowParams : OneRowShape {
  const int4* weight;     // [out_features, vectors]
  const float4* scales;   // [groups, out_features / 4]
  const int4* x;          // [vectors]
  const float* x_scales;  // [groups]
};

namespace detail {

/// Read once: not worth a place in the first-level cache.
template <class Vector>
__device__ __forceinline__ Vector load_streaming(const Vector* from) {
  const int4 bits = __ldcs(reinterpret_cast<const int4*>(from));
  return *reinterpret_cast<const Vector*>(&bits);
}

/// Where the rows of a block's outputs begin. Outputs past the last are read as the last and not written.
template <class Vector>
__device__ __forceinline__ void find_rows(const Vector* weight, const OneRowShape& shape,
                                          const Vector* (&rows)[kOneRowOutputs]) {
  const auto first = static_cast<int32_t>(blockIdx.x) * kOneRowOutputs;
#pragma unroll
  for (int o = 0; o < kOneRowOutputs; ++o)
    rows[o] = weight + int64_t{min(first + o, shape.out_features - 1)} * shape.vectors;
}

class Bf16Rows {
 public:
  struct Weights {
    Bf16x8 of[kOneRowOutputs];
  };

  __device__ __forceinline__ explicit Bf16Rows(const OneRowParams& params) : params_(params) {
    find_rows(params.weight, params, rows_);
  }
  __device__ __forceinline__ void load(int32_t index, Weights& to) const {
#pragma unroll
    for (int o = 0; o < kOneRowOutputs; ++o) to.of[o] = load_streaming(rows_[o] + index);
  }
  __device__ __forceinline__ void add(int32_t index, const Weights& weights, float (&sums)[kOneRowOutputs]) const {
    float x[8];
    unpack(params_.x[index], x);
#pragma unroll
    for (int o = 0; o < kOneRowOutputs; ++o) {
      float wide[8];
      unpack(weights.of[o], wide);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[o] = fmaf(wide[i], x[i], sums[o]);
    }
  }

 private:
  const OneRowParams& params_;
  const Bf16x8* rows_[kOneRowOutputs];
};

/// 16 codes.
__device__ __forceinline__ void unpack_e4m3(const int4& from, float (&to)[16]) {
  const auto* pairs = reinterpret_cast<const __nv_fp8x2_storage_t*>(&from);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pairs[i], __NV_E4M3)));
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

class Fp8Rows {
 public:
  struct Weights {
    int4 of[kOneRowOutputs];
    float4 scales;
  };

  __device__ __forceinline__ explicit Fp8Rows(const OneFp8RowParams& params) : params_(params) {
    find_rows(params.weight, params, rows_);
  }
  __device__ __forceinline__ void load(int32_t index, Weights& to) const {
#pragma unroll
    for (int o = 0; o < kOneRowOutputs; ++o) to.of[o] = load_streaming(rows_[o] + index);
    to.scales = __ldg(params_.scales + int64_t{group_of(index)} * (params_.out_features / kOneRowOutputs) + blockIdx.x);
  }
  __device__ __forceinline__ void add(int32_t index, const Weights& weights, float (&sums)[kOneRowOutputs]) const {
    float x[16];
    unpack_e4m3(params_.x[index], x);
    const float x_scale = params_.x_scales[group_of(index)];
    const float scales[kOneRowOutputs] = {weights.scales.x, weights.scales.y, weights.scales.z, weights.scales.w};
#pragma unroll
    for (int o = 0; o < kOneRowOutputs; ++o) {
      float wide[16], sum = 0.0f;
      unpack_e4m3(weights.of[o], wide);
#pragma unroll
      for (int i = 0; i < 16; ++i) sum = fmaf(wide[i], x[i], sum);
      sums[o] = fmaf(sum, scales[o] * x_scale, sums[o]);
    }
  }

 private:
  __device__ __forceinline__ static int32_t group_of(int32_t index) {
    return index / static_cast<int32_t>(kFp8Group / 16);
  }

  const OneFp8RowParams& params_;
  const int4* rows_[kOneRowOutputs];
};

__device__ __forceinline__ void store_output(const OneRowShape& shape, int32_t index, float value) {
  switch (shape.output) {
    case LinearOutput::kActivations: static_cast<__nv_bfloat16*>(shape.y)[index] = __float2bfloat16(value); break;
    case LinearOutput::kF32: static_cast<float*>(shape.y)[index] = value; break;
    case LinearOutput::kAddF32: static_cast<float*>(shape.y)[index] += value; break;
    case LinearOutput::kGated: break;  // not offered
  }
}

}  // namespace detail

template <int kBlockWarps>
struct OneRowTraits {
  using Params = OneRowParams;
  using Rows = detail::Bf16Rows;
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kUnroll = 2;  // vectors of an output that a lane has in flight
};

template <int kBlockWarps>
struct OneFp8RowTraits : OneRowTraits<kBlockWarps> {
  using Params = OneFp8RowParams;
  using Rows = detail::Fp8Rows;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kWarps * 32)
    one_row_kernel(const __grid_constant__ typename Traits::Params params) {
  constexpr int kWarps = Traits::kWarps, kOutputs = kOneRowOutputs, kUnroll = Traits::kUnroll;
  constexpr int kThreads = kWarps * 32;
  __shared__ float partial[kWarps][kOutputs];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const typename Traits::Rows rows(params);

  float sums[kOutputs] = {};
  bool waited = false;
  for (int32_t base = thread; base < params.vectors; base += kThreads * kUnroll) {
    typename Traits::Rows::Weights weights[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (base + kThreads * u < params.vectors) rows.load(base + kThreads * u, weights[u]);
    if (!waited) wait_for_previous_kernel();
    waited = true;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + kThreads * u >= params.vectors) break;
      rows.add(base + kThreads * u, weights[u], sums);
    }
  }
  // Threads past the end of a short row wait as well: each may write.
  if (!waited) wait_for_previous_kernel();
  allow_next_kernel();
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const float sum = warp_sum(sums[o]);
    if (thread % 32 == 0) partial[thread / 32][o] = sum;
  }
  __syncthreads();
  const int32_t output = static_cast<int32_t>(blockIdx.x) * kOutputs + thread;
  if (thread >= kOutputs || output >= params.out_features) return;
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp][thread];
  detail::store_output(params, output, sum);
}

}  // namespace kvant::ops::cuda
