#pragma once

#include <cstdint>

#include "attn/cuda/common/ptx.cuh"

// Shared-memory matrices as MMA operands.
namespace kvant::attn::cuda {

/// Four 8 x 8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address));
}
/// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address));
}

/// Copies 16 bytes from global to shared memory, or writes zeros there without reading.
__device__ __forceinline__ void copy_async_16_or_zero(uint32_t to, const void* from, bool copy) {
  const int bytes = copy ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async_8(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/// Rows of 16-bit elements in shared memory, in 16-byte chunks, placed so that eight rows of one chunk, and eight
/// chunks of one row, lie in different banks.
template <int kElements>
struct OperandRows {
  static constexpr int kChunks = kElements / 8;
  static constexpr bool kSwizzled = kChunks % 8 == 0;
  static constexpr int kRowBytes = 2 * kElements + (kSwizzled ? 0 : 16);
  static constexpr int kEightChunks = 128;  ///< offset(row, chunk + 8) - offset(row, chunk)
  static_assert(kSwizzled || kChunks % 2 == 0, "a padded row is an odd number of chunks");

  __device__ __forceinline__ static uint32_t offset(int row, int chunk) {
    return row * kRowBytes + 16 * (kSwizzled ? chunk ^ (row & 7) : chunk);
  }
  /// offset(row, chunk + first) from at = offset(row, chunk), for an even `first` and a chunk of 0 or 1; rows begin at
  /// multiples of 128 bytes.
  __device__ __forceinline__ static uint32_t move_chunk(uint32_t at, int first) {
    return kSwizzled ? (at ^ (16 * (first & 7))) + 16 * (first & ~7) : at + 16 * first;
  }
};

}  // namespace kvant::attn::cuda
