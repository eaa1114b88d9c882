#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kvant/core/dtype.h"

// Arithmetic that attention kernels share, apart from the products.
namespace kvant::attn::cuda {

inline constexpr float kLog2OfE = 1.44269504088896340736f;
inline constexpr float kLnOf2 = 0.69314718055994530942f;

/// Of a request's first `length` keys, how many a context-parallel rank holds: keys j with (j / interleave) % size ==
/// rank.
__device__ __forceinline__ int32_t owned_keys(int32_t length, int32_t rank, int32_t size, int32_t interleave) {
  if (size == 1) [[likely]]
    return length;
  const int32_t cycle = size * interleave;
  const int32_t rest = length % cycle - rank * interleave;
  return length / cycle * interleave + min(max(rest, 0), interleave);
}
/// The request's key that is a rank's key `owned`.
__device__ __forceinline__ int32_t global_key(int32_t owned, int32_t rank, int32_t size, int32_t interleave) {
  if (size == 1) return owned;
  return (owned / interleave * size + rank) * interleave + owned % interleave;
}

/// Eight adjacent elements, from an address of whole 16 bytes.
__device__ __forceinline__ void load_eight(const void* from, DType dtype, int64_t index, float (&x)[8]) {
  if (dtype == DType::kF32) {
    const auto* source = reinterpret_cast<const float4*>(static_cast<const float*>(from) + index);
    const float4 low = source[0], high = source[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
  const uint4 raw = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(from) + index);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = (&raw.x)[i];
    if (dtype == DType::kBf16) {
      x[2 * i] = __uint_as_float(pair << 16);
      x[2 * i + 1] = __uint_as_float(pair & 0xffff0000u);
    } else {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      x[2 * i] = both.x, x[2 * i + 1] = both.y;
    }
  }
}

/// Two adjacent elements; `index` is even.
__device__ __forceinline__ void store_two(void* to, DType dtype, int64_t index, float low, float high) {
  switch (dtype) {
    case DType::kF32: *reinterpret_cast<float2*>(static_cast<float*>(to) + index) = make_float2(low, high); return;
    case DType::kF16:
      *reinterpret_cast<__half2*>(static_cast<__half*>(to) + index) = __floats2half2_rn(low, high);
      return;
    case DType::kBf16:
      *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(to) + index) = __floats2bfloat162_rn(low, high);
      return;
  }
}

/// To about 2^-22 of 1, in few instructions.
__device__ __forceinline__ float tanh_by_exp(float x) {
  float e, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * (2.0f * kLog2OfE)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(e + 1.0f));
  return fmaf(-2.0f, inverse, 1.0f);
}

/// The power of two at or below |x|, within the normal numbers; 1 for 0, inf and NaN.
__device__ __forceinline__ int32_t exponent_of(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7f800000u;
  return bits == 0 || bits == 0x7f800000u ? 0 : static_cast<int32_t>(bits >> 23) - 127;
}
/// 2^exponent for -126 to 127.
__device__ __forceinline__ float power_of_two(int32_t exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

}  // namespace kvant::attn::cuda
