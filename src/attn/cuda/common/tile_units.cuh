#pragma once

#include <cstdint>

#include "attn/cuda/common/codecs.cuh"
#include "kvant/attn/kv_layout.h"

// Units of 16 stored elements as f16 operands, the format chosen at run time: for kernels that expand a tile once and
// use it for many query rows.
namespace kvant::attn::cuda {

/// expand_unit gives 2^-unit_shift of what the multiplier asks for.
__device__ __forceinline__ int unit_shift(KvFormat format) {
  if (format == KvFormat::kNvfp4) return 14;
  return format == KvFormat::kE4m3 ? E4m3::kShift : 0;
}

namespace detail {

/// Four e4m3 bytes to two f16x2, times 2^-E4m3::kShift.
__device__ __forceinline__ void e4m3x4_to_f16x2(uint32_t word, uint32_t& low_pair, uint32_t& high_pair) {
#if __CUDA_ARCH__ >= 890
  asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n cvt.rn.f16x2.e4m3x2 %1, high;}"
      : "=r"(low_pair), "=r"(high_pair)
      : "r"(word));
#else
  low_pair = e4m3x2_to_f16x2(word);
  high_pair = e4m3x2_to_f16x2(high_half(word));
#endif
}

/// Eight e2m1 codes, element i in nibble i, to f16x2 pairs of neighbours, times 2^-14.
__device__ __forceinline__ void linear_codes_to_f16x2(uint32_t w, uint32_t (&out)[4]) {
#if KVANT_HARDWARE_E2M1
  e2m1x8_to_f16x2(w, out);
#pragma unroll
  for (uint32_t& pair : out) pair = mul_f16x2(pair, 0x04000400u);
#else
  uint32_t apart[4];  // elements i and i + 4
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t codes = w >> 4 * i;
    apart[i] = and_or(codes << 9, 0x0E000E00u, (codes << 12) & 0x80008000u);
  }
  out[0] = __byte_perm(apart[0], apart[1], 0x5410);
  out[1] = __byte_perm(apart[2], apart[3], 0x5410);
  out[2] = __byte_perm(apart[0], apart[1], 0x7632);
  out[3] = __byte_perm(apart[2], apart[3], 0x7632);
#endif
}

}  // namespace detail

/// Selects a byte of a word for both halves of a pair.
__device__ __forceinline__ uint32_t scale_selector(uint32_t place) { return (place & 3u) * 0x11 | 0x4400; }

/// What the sixteen elements of a unit are stored as.
enum class UnitFormat : uint8_t { kAny, k16Bits, kE4m3, kE5m2, kNvfp4Packed, kNvfp4Linear };

inline constexpr uint32_t kMultiplierOne = 0x3c003c00u;

/// Sixteen elements to f16, times the multiplier (f16x2), which is one unless kScaled. NVFP4: eight bytes of codes, a
/// word that holds the scale, and the selector that brings the scale's byte to both halves.
template <UnitFormat kFormat, bool kScaled = true>
__device__ __forceinline__ void expand_unit(const uint4& words, uint32_t multiplier, uint32_t (&x)[8]) {
  static_assert(kFormat != UnitFormat::kAny && kFormat != UnitFormat::k16Bits,
                "one format, and not an operand already");
  if constexpr (kFormat == UnitFormat::kNvfp4Packed || kFormat == UnitFormat::kNvfp4Linear) {
    const uint32_t one_scale = __byte_perm(words.z, 0, words.w);
    const uint32_t scale = mul_f16x2(detail::scales_to_f16x2(one_scale, 0), multiplier);
    uint32_t pairs[2][4];
    if constexpr (kFormat == UnitFormat::kNvfp4Packed) {
      detail::packed_codes_to_f16x2(words.x, pairs[0]);
      detail::packed_codes_to_f16x2(words.y, pairs[1]);
    } else {
      detail::linear_codes_to_f16x2(words.x, pairs[0]);
      detail::linear_codes_to_f16x2(words.y, pairs[1]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = mul_f16x2(pairs[i / 4][i % 4], scale);
    return;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = (&words.x)[i];
      if constexpr (kFormat == UnitFormat::kE5m2) {
        x[2 * i] = __byte_perm(word, 0, 0x1404);
        x[2 * i + 1] = __byte_perm(word, 0, 0x3424);
      } else {
        detail::e4m3x4_to_f16x2(word, x[2 * i], x[2 * i + 1]);
      }
    }
    if constexpr (kScaled) {
      if (multiplier == kMultiplierOne) return;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = mul_f16x2(x[i], multiplier);
    }
  }
}

/// The same for a format known at run time: e4m3, e5m2 or nvfp4.
__device__ __forceinline__ void expand_any_unit(KvFormat format, CodeOrder order, const uint4& words,
                                                uint32_t multiplier, uint32_t (&x)[8]) {
  if (format == KvFormat::kNvfp4 && order == CodeOrder::kPacked)
    expand_unit<UnitFormat::kNvfp4Packed>(words, multiplier, x);
  else if (format == KvFormat::kNvfp4)
    expand_unit<UnitFormat::kNvfp4Linear>(words, multiplier, x);
  else if (format == KvFormat::kE5m2)
    expand_unit<UnitFormat::kE5m2>(words, multiplier, x);
  else
    expand_unit<UnitFormat::kE4m3>(words, multiplier, x);
}

/// Sixteen f16 elements times a factor, through fp32.
__device__ __forceinline__ void rescale_f16(const uint4& low, const uint4& high, float factor, uint32_t (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t pair = i < 4 ? (&low.x)[i] : (&high.x)[i - 4];
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    x[i] = pack_f16(both.x * factor, both.y * factor);
  }
}

}  // namespace kvant::attn::cuda
