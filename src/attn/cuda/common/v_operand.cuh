#pragma once

#include <cstdint>

#include "attn/cuda/common/codecs.cuh"

// V as an MMA operand: codecs.cuh says which lane holds what.
namespace kvant::attn::cuda {

/// Row of a tile that is a lane's token i.
__device__ __forceinline__ int v_token(int i, int t) { return 2 * t + (i & 1) + 8 * (i / 2); }

/// Raw registers of a lane's channels of four tokens, and their expansion to MMA A fragments of V^T.
template <class Codec, int kHeadDim>
struct VTile;

template <int kHeadDim>
struct VTile16 {
  static constexpr int kLaneDims = kHeadDim / 8;
  static constexpr int kLoads = kLaneDims / 8;
  uint4 raw[4][kLoads];

  __device__ __forceinline__ static LaneRead lane_read(int g, int t) {
    return {opaque(TileRows<2 * kHeadDim>::offset(2 * t, kLoads * g)), 0};
  }
  __device__ __forceinline__ void load(uint32_t rows, uint32_t, const LaneRead& lane) {
    const uint32_t odd = TileRows<2 * kHeadDim>::next_row(lane.data);
#pragma unroll
    for (int token = 0; token < 4; ++token)
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        raw[token][i] =
            load_shared_16(rows + ((token % 2 == 0 ? lane.data : odd) ^ 16 * i) + token / 2 * 16 * kHeadDim);
  }
  __device__ static void clear_rows(uint32_t rows, uint32_t, int32_t first, int lane) {
    TileRows<2 * kHeadDim>::clear(rows, first, lane);
  }
  __device__ __forceinline__ void fragment(int tile, uint32_t (&a)[4]) const {
    const uint32_t w0 = word(0, tile), w1 = word(1, tile), w2 = word(2, tile), w3 = word(3, tile);
    a[0] = __byte_perm(w0, w1, 0x5410);
    a[1] = __byte_perm(w0, w1, 0x7632);
    a[2] = __byte_perm(w2, w3, 0x5410);
    a[3] = __byte_perm(w2, w3, 0x7632);
  }

 private:
  __device__ __forceinline__ uint32_t word(int token, int i) const { return (&raw[token][i / 4].x)[i % 4]; }
};
template <int kHeadDim>
struct VTile<Bf16, kHeadDim> : VTile16<kHeadDim> {};
template <int kHeadDim>
struct VTile<F16, kHeadDim> : VTile16<kHeadDim> {};

template <int kHeadDim>
struct VTile<E4m3, kHeadDim> {
  static constexpr int kLaneDims = kHeadDim / 8;
  static constexpr int kWords = kLaneDims / 4;
  uint32_t raw[4][kWords];

  __device__ __forceinline__ static LaneRead lane_read(int g, int t) {
    using Rows = TileRows<kHeadDim>;
    return {opaque(kWords % 4 == 0 ? Rows::offset(2 * t, kWords / 4 * g) : Rows::offset(2 * t, g / 2) + 8 * (g % 2)),
            0};
  }
  __device__ __forceinline__ void load(uint32_t rows, uint32_t, const LaneRead& lane) {
    const uint32_t odd = TileRows<kHeadDim>::next_row(lane.data);
#pragma unroll
    for (int token = 0; token < 4; ++token) {
      const uint32_t row = token % 2 == 0 ? lane.data : odd;
      if constexpr (kWords % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kWords / 4; ++i) {
          const uint4 v = load_shared_16(rows + (row ^ 16 * i) + token / 2 * 8 * kHeadDim);
          raw[token][4 * i] = v.x, raw[token][4 * i + 1] = v.y, raw[token][4 * i + 2] = v.z,
                         raw[token][4 * i + 3] = v.w;
        }
      } else {
        const uint2 v = load_shared_8(rows + row + token / 2 * 8 * kHeadDim);
        raw[token][0] = v.x, raw[token][1] = v.y;
      }
    }
  }
  __device__ static void clear_rows(uint32_t rows, uint32_t, int32_t first, int lane) {
    TileRows<kHeadDim>::clear(rows, first, lane);
  }
  __device__ __forceinline__ void fragment(int tile, uint32_t (&a)[4]) const {
    const int word = tile / 2;
    const uint32_t select = tile % 2 == 0 ? 0x5140u : 0x7362u;
    const uint32_t low = __byte_perm(raw[0][word], raw[1][word], select);
    const uint32_t high = __byte_perm(raw[2][word], raw[3][word], select);
    a[0] = detail::e4m3x2_to_f16x2(low);
    a[1] = detail::e4m3x2_to_f16x2(detail::high_half(low));
    a[2] = detail::e4m3x2_to_f16x2(high);
    a[3] = detail::e4m3x2_to_f16x2(detail::high_half(high));
  }
};

/// Scales in lane order: one word holds a block's scales of the lane's four tokens.
template <int kHeadDim>
struct VTile<Nvfp4, kHeadDim> {
  static constexpr int kLaneDims = kHeadDim / 8;
  static constexpr int kWords = kLaneDims / 8;
  static constexpr int kBlocks = kLaneDims < 16 ? 1 : kLaneDims / 16;
  uint32_t raw[4][kWords];
  uint32_t scale[kBlocks];

  __device__ __forceinline__ static LaneRead lane_read(int g, int t) {
    const int lane_byte = 4 * kWords * g;
    return {opaque(TileRows<kHeadDim / 2>::offset(2 * t, lane_byte / 16) + lane_byte % 16),
            opaque(16 * (kLaneDims * g / 16) + 4 * t)};
  }
  __device__ __forceinline__ void load(uint32_t rows, uint32_t scales, const LaneRead& lane) {
    const uint32_t odd = TileRows<kHeadDim / 2>::next_row(lane.data);
#pragma unroll
    for (int token = 0; token < 4; ++token) {
      const uint32_t address = rows + (token % 2 == 0 ? lane.data : odd) + token / 2 * 4 * kHeadDim;
      if constexpr (kWords == 1) {
        raw[token][0] = load_shared_4(address);
      } else if constexpr (kWords == 2) {
        const uint2 v = load_shared_8(address);
        raw[token][0] = v.x, raw[token][1] = v.y;
      } else {
        const uint4 v = load_shared_16(address);
        raw[token][0] = v.x, raw[token][1] = v.y, raw[token][2] = v.z, raw[token][3] = v.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) scale[i] = load_shared_4(scales + lane.scale + 16 * i);
  }
  __device__ static void clear_rows(uint32_t rows, uint32_t scales, int32_t first, int lane) {
    TileRows<kHeadDim / 2>::clear(rows, first, lane);
    for (int word = lane; word < kHeadDim / 4; word += 32) {
      uint32_t kept = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) kept |= v_token(i, word % 4) < first ? 0xffu << 8 * i : 0;
      const uint32_t address = scales + 4 * word;
      store_shared_4(address, load_shared_4(address) & kept);
    }
  }
  __device__ __forceinline__ void fragment(int tile, uint32_t (&a)[4]) const {
    const int word = tile / 4, part = tile % 4;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const uint32_t w0 = raw[2 * pair][word], w1 = raw[2 * pair + 1][word];
      const uint32_t s = detail::scales_to_f16x2(scale[word / 2], 2 * pair);
#if KVANT_HARDWARE_E2M1
      // Two channels of a token each, then one of both tokens.
      uint32_t first[4], second[4];
      detail::e2m1x8_to_f16x2(w0, first);
      detail::e2m1x8_to_f16x2(w1, second);
      a[2 * pair] = mul_f16x2(__byte_perm(first[part], second[part], 0x5410), s);
      a[2 * pair + 1] = mul_f16x2(__byte_perm(first[part], second[part], 0x7632), s);
#else
      // Bytes of neighbouring tokens are joined before they are expanded: each f16x2 is one channel of two tokens.
      uint32_t even[4], odd[4];
      detail::packed_codes_to_f16x2(__byte_perm(w0, w1, 0x5410), __byte_perm(w0, w1, 0x4501), even);
      detail::packed_codes_to_f16x2(__byte_perm(w0, w1, 0x7632), __byte_perm(w0, w1, 0x6723), odd);
      a[2 * pair] = mul_f16x2(even[part], s);
      a[2 * pair + 1] = mul_f16x2(odd[part], s);
#endif
    }
  }
};

}  // namespace kvant::attn::cuda
