#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attn/cuda/common/page_plane.h"
#include "core/float_bits.h"
#include "kvant/core/dtype.h"

// Sixteen elements of a row per thread, or four: where they are, how they are read and written.
namespace kvant::attn::cuda {

/// The widest accesses that the address allows; callers' tensors and pages need no alignment.
template <int kWords>
__device__ __forceinline__ void load_words(const void* from, uint32_t (&words)[kWords]) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  if (kWords % 4 == 0 && address % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 v = static_cast<const uint4*>(from)[i];
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  } else if (kWords % 2 == 0 && address % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) {
      const uint2 v = static_cast<const uint2*>(from)[i];
      words[2 * i] = v.x, words[2 * i + 1] = v.y;
    }
  } else {
    const auto* bytes = static_cast<const uint8_t*>(from);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = bytes[4 * i] | uint32_t{bytes[4 * i + 1]} << 8 | uint32_t{bytes[4 * i + 2]} << 16 |
                 uint32_t{bytes[4 * i + 3]} << 24;
    }
  }
}

template <int kWords>
__device__ __forceinline__ void store_words(void* to, const uint32_t (&words)[kWords]) {
  const auto address = reinterpret_cast<uintptr_t>(to);
  if (kWords % 4 == 0 && address % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i)
      static_cast<uint4*>(to)[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  } else if (kWords % 2 == 0 && address % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) static_cast<uint2*>(to)[i] = make_uint2(words[2 * i], words[2 * i + 1]);
  } else if (kWords == 1 && address % 4 == 0) {
    *static_cast<uint32_t*>(to) = words[0];
  } else {
    auto* bytes = static_cast<uint8_t*>(to);
#pragma unroll
    for (int i = 0; i < 4 * kWords; ++i) bytes[i] = static_cast<uint8_t>(words[i / 4] >> 8 * (i % 4));
  }
}

/// Widens the elements; NaN keeps its payload, as on the CPU.
template <int kElements>
__device__ __forceinline__ void load_unit(const void* from, DType dtype, float (&x)[kElements]) {
  if (dtype == DType::kF32) {
    uint32_t words[kElements];
    load_words(from, words);
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = bits_to_float(words[i]);
    return;
  }
  uint32_t words[kElements / 2];
  load_words(from, words);
  if (dtype == DType::kBf16) {
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      x[i] = bits_to_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = f16_to_float(static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2)));
  }
}

/// Rounds the elements to the dtype. A NaN stays one, with another payload than on the CPU.
template <int kElements>
__device__ __forceinline__ void round_unit(DType dtype, float (&x)[kElements]) {
  if (dtype == DType::kF32) return;
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    x[i] = dtype == DType::kBf16 ? __bfloat162float(__float2bfloat16_rn(x[i])) : __half2float(__float2half_rn(x[i]));
}

/// Stores elements that the dtype holds.
template <int kElements>
__device__ __forceinline__ void store_unit(void* to, DType dtype, const float (&x)[kElements]) {
  if (dtype == DType::kF32) {
    uint32_t words[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) words[i] = float_to_bits(x[i]);
    store_words(to, words);
    return;
  }
  uint32_t words[kElements / 2];
#pragma unroll
  for (int i = 0; i < kElements / 2; ++i) {
    const float low = x[2 * i], high = x[2 * i + 1];
    words[i] = dtype == DType::kBf16
                   ? __byte_perm(float_to_bits(low), float_to_bits(high), 0x7632)
                   : __half_as_ushort(__float2half_rn(low)) | uint32_t{__half_as_ushort(__float2half_rn(high))} << 16;
  }
  store_words(to, words);
}

/// The part of a row that this thread works on. All lanes of a warp hold whole rows together; a lane without work is
/// not live but must stay for the shuffles.
struct RowUnit {
  uint32_t row, block;
  bool live;
};

/// `block` counts the blocks that walk this grid.
__device__ __forceinline__ RowUnit row_unit(const UnitGrid& grid, uint32_t block) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = block * (blockDim.x / 32) + threadIdx.x / 32;
  const uint32_t row_in_warp = lane * grid.row_reciprocal >> 16;
  const uint32_t row = warp * grid.rows_per_warp + row_in_warp;
  return {.row = row,
          .block = lane - row_in_warp * grid.row_units,
          .live = row_in_warp < grid.rows_per_warp && row < grid.num_rows};
}

__device__ __forceinline__ RowUnit row_unit(const UnitGrid& grid) { return row_unit(grid, blockIdx.x); }

}  // namespace kvant::attn::cuda
