#pragma once

#include <cstdint>

#include <cuda_fp16.h>

#include "attn/cuda/common/e2m1_convert.cuh"
#include "attn/cuda/common/ptx.cuh"

// How a kernel turns cache bytes into MMA operands, one struct per format; V's are in v_operand.cuh.
//
// A warp works on 16 tokens. As a K operand, lane (g, t) = (lane / 4, lane % 4) holds, of rows g
// and g + 8, channels 4 * kLaneDims * c + kLaneDims * t + [0, kLaneDims) of chunk c, four per MMA
// k-step. The order of channels in the reduction is free; Q is loaded in the same order. As a V operand, the lane
// holds head_dim / 8 adjacent channels from g * head_dim / 8 of tokens 2t, 2t + 1, 2t + 8 and 2t + 9; MMA rows g and
// g + 8 of tile i are its channels 2i and 2i + 1, so the operand needs byte permutes only.
//
// Operands carry a factor 2^-kShift that the kernel undoes in the softmax scale and the epilogue.
namespace kvant::attn::cuda {

/// A tile's rows in shared memory, in 16-byte chunks that are swizzled so that both ways of reading them are free of
/// bank conflicts: K as rows g by chunk t, V as chunk g of rows 2t. A row keeps its chunks, in another order.
template <int kRowBytes_>
struct TileRows {
  static constexpr int kChunks = kRowBytes_ / 16;
  static constexpr int kRowBytes = kRowBytes_;
  static constexpr int kBytes = 16 * kRowBytes;

  __device__ __forceinline__ static uint32_t offset(int row, int chunk) {
    if constexpr (kChunks <= 2)
      return row * kRowBytes + 16 * chunk;
    else if constexpr (kChunks == 4)
      return (16 * (4 * row + chunk)) ^ ((row << 4) & 0x60);
    else
      return row * kRowBytes + 16 * (chunk ^ turn(row));
  }
  /// offset(row + 1, chunk) from offset(row, chunk) of an even row.
  __device__ __forceinline__ static uint32_t next_row(uint32_t even) {
    if constexpr (kChunks <= 2)
      return even + kRowBytes;
    else if constexpr (kChunks == 4)
      return even ^ 64;
    else
      return (even ^ 64) + kRowBytes;
  }
  /// offset(row + i, chunk) is (offset(row, chunk) ^ step_turn(i)) + i * kRowBytes for rows below i, i a power of two
  /// or a sum of those from it on; with four chunks i is even. The turn stays within 128 bytes.
  __device__ __forceinline__ static constexpr uint32_t step_turn(int i) {
    if constexpr (kChunks <= 2)
      return 0;
    else if constexpr (kChunks == 4)
      return (i << 4) & 0x60;
    else
      return 16 * turn(i % 8);
  }
  /// Zeros rows from `first` on; the lanes of a warp share the work.
  __device__ static void clear(uint32_t rows, int32_t first, int lane) {
    for (int i = first * kChunks + lane; i < 16 * kChunks; i += 32)
      store_shared_16(rows + offset(i / kChunks, i % kChunks), make_uint4(0, 0, 0, 0));
  }

 private:
  __device__ __forceinline__ static constexpr int turn(int row) {
    const int odd = (row & 1) << 2;
    if constexpr (kChunks == 8)
      return (row & 6) ^ odd;
    else if constexpr (kChunks == 16)
      return ((row >> 1) & 1) ^ (row & 4) ^ odd;
    else
      return ((row >> 1) & 3) ^ odd;
  }
};

struct Bf16 {
  static constexpr bool kBf16Math = true;
  static constexpr int kShift = 0;
  static constexpr int kBits = 16;
  static constexpr bool kScales = false;
};
struct F16 {
  static constexpr bool kBf16Math = false;
  static constexpr int kShift = 0;
  static constexpr int kBits = 16;
  static constexpr bool kScales = false;
};
struct E4m3 {
  static constexpr bool kBf16Math = false;
  // With the hardware convert the operand is exact; the software route below is 2^-8.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  static constexpr int kShift = 8;
#else
  static constexpr int kShift = 0;
#endif
  static constexpr int kBits = 8;
  static constexpr bool kScales = false;
};
/// Codes in the order that the family expands fastest, `own_code_order`.
struct Nvfp4 {
  static constexpr bool kBf16Math = false;
#if KVANT_HARDWARE_E2M1
  static constexpr int kShift = 0;
#else
  // Codes leave the mask as 2^-14; code times scale is a multiple of 2^-10, so the product stays exact as a subnormal.
  static constexpr int kShift = 14;
#endif
  static constexpr int kBits = 4;
  static constexpr bool kScales = true;
};

namespace detail {

/// Two e4m3 bytes in the low half of `pair` to f16x2, times 2^-E4m3::kShift.
__device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  uint32_t result;
  asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.rn.f16x2.e4m3x2 %0, low;}" : "=r"(result) : "r"(pair));
  return result;
#else
  // byte = s eeee mmm -> half = s 0eeee mmm0000000: the exponent bias is off by 8.
  const uint32_t spread = __byte_perm(pair, 0, 0x1404);
  return (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 1);
#endif
}
__device__ __forceinline__ uint32_t high_half(uint32_t word) { return word >> 16; }

/// Scale bytes (e4m3, positive) `first` (0 or 2) and `first` + 1 of a word as f16x2.
__device__ __forceinline__ uint32_t scales_to_f16x2(uint32_t bytes, int first) {
#if __CUDA_ARCH__ >= 890
  return e4m3x2_to_f16x2(first == 0 ? bytes : bytes >> 16);
#else
  const uint32_t spread = __byte_perm(bytes, 0, first == 0 ? 0x1404 : 0x3424);
  return mul_f16x2((spread & 0x7f007f00u) >> 1, 0x5c005c00u);  // 2^8 undoes the bias of the cheap convert
#endif
}

/// Eight packed e2m1 codes to four f16x2, times 2^-14, in the order (A1 A3) (A0 A2) (B0 B2) (B1 B3) of the bytes.
/// `swapped` has the bytes of both halves exchanged. A's fields are in their places; a product moves B's sign and
/// magnitude at once, and what else it gives is masked.
__device__ __forceinline__ void packed_codes_to_f16x2(uint32_t w, uint32_t swapped, uint32_t (&out)[4]) {
  constexpr uint32_t kSignMagnitude = 0x8E008E00u, kB = 0x00710071u, kMoveB = 1u << 15 | 1u << 5;
  out[0] = w & kSignMagnitude;
  out[1] = swapped & kSignMagnitude;
  out[2] = (w & kB) * kMoveB & kSignMagnitude;
  out[3] = (swapped & kB) * kMoveB & kSignMagnitude;
}
__device__ __forceinline__ void packed_codes_to_f16x2(uint32_t w, uint32_t (&out)[4]) {
  packed_codes_to_f16x2(w, __byte_perm(w, 0, 0x2301), out);
}

/// Eight codes in the family's own order to pairs of neighbours, times 2^-Nvfp4::kShift.
__device__ __forceinline__ void own_codes_to_f16x2(uint32_t w, uint32_t (&out)[4]) {
#if KVANT_HARDWARE_E2M1
  e2m1x8_to_f16x2(w, out);
#else
  packed_codes_to_f16x2(w, out);
#endif
}

}  // namespace detail

// ---- K operand ---------------------------------------------------------------------------------------------------

/// Keeps the compiler from computing a loop's lane constants again for every tile: it cannot look through a shuffle.
/// All lanes of a warp call it together.
__device__ __forceinline__ uint32_t opaque(uint32_t value) { return __shfl_sync(0xffffffffu, value, threadIdx.x % 32); }
__device__ __forceinline__ const uint8_t* opaque(const uint8_t* p) {
  return reinterpret_cast<const uint8_t*>(
      __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(p), threadIdx.x % 32));
}

/// Where a lane's first chunk of its first row and its first scale are, from the start of a stage's planes. Its other
/// rows and chunks follow by constants.
struct LaneRead {
  uint32_t data, scale;
};

/// Raw registers of rows g and g + 8 of one tile, and their expansion to MMA A fragments.
template <class Codec, int kHeadDim>
struct KTile;

template <int kHeadDim>
struct KTile16 {
  static constexpr int kLaneDims = 8;
  static constexpr int kChunks = kHeadDim / (4 * kLaneDims);
  uint4 raw[2][kChunks];

  __device__ __forceinline__ static LaneRead lane_read(int g, int t) {
    return {opaque(TileRows<2 * kHeadDim>::offset(g, t)), 0};
  }
  __device__ __forceinline__ void load(uint32_t rows, uint32_t, const LaneRead& lane) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        raw[half][c] = load_shared_16(rows + (lane.data ^ 64 * c) + 16 * half * kHeadDim);
    }
  }
  __device__ __forceinline__ void fragment(int step, uint32_t (&a)[4]) const {
    const uint4& low = raw[0][step / 2];
    const uint4& high = raw[1][step / 2];
    a[0] = step % 2 == 0 ? low.x : low.z;
    a[1] = step % 2 == 0 ? high.x : high.z;
    a[2] = step % 2 == 0 ? low.y : low.w;
    a[3] = step % 2 == 0 ? high.y : high.w;
  }
};
template <int kHeadDim>
struct KTile<Bf16, kHeadDim> : KTile16<kHeadDim> {};
template <int kHeadDim>
struct KTile<F16, kHeadDim> : KTile16<kHeadDim> {};

template <int kHeadDim>
struct KTile<E4m3, kHeadDim> {
  static constexpr int kLaneDims = 16;
  static constexpr int kChunks = kHeadDim / (4 * kLaneDims);
  uint4 raw[2][kChunks];

  __device__ __forceinline__ static LaneRead lane_read(int g, int t) {
    return {opaque(TileRows<kHeadDim>::offset(g, t)), 0};
  }
  __device__ __forceinline__ void load(uint32_t rows, uint32_t, const LaneRead& lane) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        raw[half][c] = load_shared_16(rows + (lane.data ^ 64 * c) + 8 * half * kHeadDim);
    }
  }
  __device__ __forceinline__ void fragment(int step, uint32_t (&a)[4]) const {
    const uint32_t low = (&raw[0][step / 4].x)[step % 4];
    const uint32_t high = (&raw[1][step / 4].x)[step % 4];
    a[0] = detail::e4m3x2_to_f16x2(low);
    a[1] = detail::e4m3x2_to_f16x2(high);
    a[2] = detail::e4m3x2_to_f16x2(detail::high_half(low));
    a[3] = detail::e4m3x2_to_f16x2(detail::high_half(high));
  }
};

/// Codes in the family's own order, scales in lane order: all that a lane needs of rows g and g + 8 is one word a
/// chunk.
template <int kHeadDim>
struct KTile<Nvfp4, kHeadDim> {
  static constexpr int kLaneDims = kHeadDim % 128 == 0 ? 32 : 16;
  static constexpr int kChunks = kHeadDim / (4 * kLaneDims);
  static constexpr int kWords = kLaneDims / 8;  ///< Per chunk and row.
  static constexpr int kBlocks = kLaneDims / 16;
  uint32_t raw[2][kChunks][kWords];
  uint32_t scale[kChunks];  ///< kBlocks bytes of row g, then of row g + 8.

  __device__ __forceinline__ static LaneRead lane_read(int g, int t) {
    constexpr int kRowBytes = kHeadDim / 2;
    const uint32_t data =
        kWords == 4 ? TileRows<kRowBytes>::offset(g, t) : TileRows<kRowBytes>::offset(g, t / 2) + 8 * (t % 2);
    return {opaque(data), opaque(kHeadDim / 8 * g + 2 * kBlocks * t)};
  }
  __device__ __forceinline__ void load(uint32_t rows, uint32_t scales, const LaneRead& lane) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t address = rows + (lane.data ^ 64 * c) + 4 * half * kHeadDim;
        if constexpr (kWords == 4) {
          const uint4 v = load_shared_16(address);
          raw[half][c][0] = v.x, raw[half][c][1] = v.y, raw[half][c][2] = v.z, raw[half][c][3] = v.w;
        } else {
          const uint2 v = load_shared_8(address);
          raw[half][c][0] = v.x, raw[half][c][1] = v.y;
        }
      }
      const uint32_t s = scales + lane.scale + 8 * kBlocks * c;
      scale[c] = kBlocks == 2 ? load_shared_4(s) : load_shared_2(s);
    }
  }
  __device__ __forceinline__ void fragment(int step, uint32_t (&a)[4]) const {
    constexpr int kSteps = kLaneDims / 4;
    const int c = step / kSteps, word = step % kSteps / 2, half = step % 2;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      uint32_t pairs[4];
      detail::own_codes_to_f16x2(raw[row][c][word], pairs);
      // Two bytes at a time: both blocks of the row, or the one block of both rows.
      const int first = kBlocks == 2 ? 2 * row : 0;
      const uint32_t both = detail::scales_to_f16x2(scale[c], first);
      const bool low = kBlocks == 2 ? word < 2 : row == 0;
      a[row] = low ? mul_f16x2_by_low(pairs[2 * half], both) : mul_f16x2_by_high(pairs[2 * half], both);
      a[row + 2] = low ? mul_f16x2_by_low(pairs[2 * half + 1], both) : mul_f16x2_by_high(pairs[2 * half + 1], both);
    }
  }
};

/// Rows of f16 in shared memory in the channel order of another format's KTile, so that both share one Q.
template <int kLaneDims, int kHeadDim>
struct ExactKTile {
  uint32_t rows;  ///< Address.
  int g, t;

  __device__ __forceinline__ void fragment(int step, uint32_t (&a)[4]) const {
    constexpr int kSteps = kLaneDims / 4;
    const int chunk = kLaneDims / 8 * (4 * (step / kSteps) + t) + step % kSteps / 2;
    const uint32_t address = rows + TileRows<2 * kHeadDim>::offset(g, chunk) + 8 * (step % 2);
    const uint2 low = load_shared_8(address), high = load_shared_8(address + 8 * TileRows<2 * kHeadDim>::kRowBytes);
    a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
  }
};

}  // namespace kvant::attn::cuda
