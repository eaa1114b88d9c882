#pragma once

#include <cstdint>

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "attn/cuda/common/exact_quotient.cuh"
#include "attn/cuda/common/nvfp4_quad.cuh"
#include "attn/cuda/common/nvfp4_unit.cuh"
#include "attn/cuda/common/page_plane.h"
#include "attn/cuda/common/unit_memory.cuh"
#include "attn/kv/e4m3.h"
#include "attn/kv/e5m2.h"
#include "attn/kv/f16.h"
#include "core/float_bits.h"

// Sixteen elements, or a lane's four, to and from the bytes of a page, in any format, bit for bit as in
// attn/kv/row_codec.h.
namespace kvant::attn::cuda {

namespace detail {

/// `encode_f16` of two values, the first in the low half. Clamping first saturates: what rounds beyond 65 504 is
/// larger.
__device__ __forceinline__ uint32_t encode_f16x2(float low, float high) {
  const __half2 pair =
      __floats2half2_rn(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
  const uint32_t bits = __half_as_ushort(__low2half(pair)) | uint32_t{__half_as_ushort(__high2half(pair))} << 16;
  const uint32_t kept = is_nan(low) ? (bits & 0xffff0000u) | kF16Nan : bits;
  return is_nan(high) ? (kept & 0xffffu) | uint32_t{kF16Nan} << 16 : kept;
}

/// What quantisers read for NaN is +0. A NaN (or an infinity) times zero shows in the sum, which is cheaper than a test
/// of each element.
template <int kElements>
__device__ __forceinline__ void clear_nans(float (&x)[kElements]) {
  float probe = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; ++i) probe = __fmaf_rn(x[i], 0.0f, probe);
  if (!is_nan(probe)) return;
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = is_nan(x[i]) ? 0.0f : x[i];
}

/// Four quotients, none NaN, to bytes.
template <KvFormat kFormat>
__device__ __forceinline__ uint32_t encode_fp8x4(float a, float b, float c, float d) {
  constexpr bool kIsE4m3 = kFormat == KvFormat::kE4m3;
#if __CUDA_ARCH__ >= 890
  constexpr __nv_fp8_interpretation_t kKind = kIsE4m3 ? __NV_E4M3 : __NV_E5M2;
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kKind);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kKind);
  return low | high << 16;
#else
  const auto encode = [](float v) -> uint32_t { return kIsE4m3 ? float_to_e4m3(v) : float_to_e5m2(v); };
  return encode(a) | encode(b) << 8 | encode(c) << 16 | encode(d) << 24;
#endif
}

/// Quotients by any g. What would saturate is clamped first and the power of two in g taken out of both numbers, so
/// that nothing that matters overflows or underflows; signs are put back at the end, since a sum of zeros loses them.
template <KvFormat kFormat, int kElements>
__device__ __forceinline__ void divide_fp8_unit(const float (&x)[kElements], float g, float (&scaled)[kElements]) {
  const float unscale = power_of_two_reciprocal(g);
  const float limit = fl_mul(kFormat == KvFormat::kE4m3 ? 2.0f * kE4m3Max : 2.0f * kE5m2Max, g);
  const ExactQuotient quotient(fl_mul(g, unscale));
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const float magnitude = quotient.rounded(fl_mul(fminf(fabsf(x[i]), limit), unscale));
    scaled[i] = copysignf(magnitude, x[i]);
  }
}

template <KvFormat kFormat, int kElements>
__device__ __forceinline__ void store_fp8_unit(const float (&x)[kElements], float g, uint8_t* data) {
  float scaled[kElements];
  if ((float_to_bits(g) & 0x007fffffu) == 0) {
    // Dividing by a power of two is multiplying by its exact reciprocal.
    const float reciprocal = power_of_two_reciprocal(g);
#pragma unroll
    for (int i = 0; i < kElements; ++i) scaled[i] = fl_mul(x[i], reciprocal);
  } else {
    divide_fp8_unit<kFormat>(x, g, scaled);
  }
  uint32_t words[kElements / 4];
#pragma unroll
  for (int i = 0; i < kElements / 4; ++i)
    words[i] = encode_fp8x4<kFormat>(scaled[4 * i], scaled[4 * i + 1], scaled[4 * i + 2], scaled[4 * i + 3]);
  store_words(data, words);
}

/// Encodes and stores `x`, which it may change, in formats that take elements one by one.
template <int kElements>
__device__ __forceinline__ void store_elements(KvFormat format, uint8_t* data, float g, float (&x)[kElements]) {
  switch (format) {
    case KvFormat::kF32: return;  // Refused by the host: a format for tests on the CPU.
    case KvFormat::kF16: {
      uint32_t words[kElements / 2];
#pragma unroll
      for (int i = 0; i < kElements / 2; ++i) words[i] = encode_f16x2(x[2 * i], x[2 * i + 1]);
      store_words(data, words);
      return;
    }
    case KvFormat::kBf16: {
      uint32_t words[kElements / 2];
#pragma unroll
      for (int i = 0; i < kElements / 2; ++i)
        words[i] = float_to_bf16(x[2 * i]) | uint32_t{float_to_bf16(x[2 * i + 1])} << 16;
      store_words(data, words);
      return;
    }
    case KvFormat::kE4m3:
      clear_nans(x);
      store_fp8_unit<KvFormat::kE4m3>(x, g, data);
      return;
    case KvFormat::kE5m2:
      clear_nans(x);
      store_fp8_unit<KvFormat::kE5m2>(x, g, data);
      return;
    case KvFormat::kNvfp4: return;  // Has blocks.
  }
}

}  // namespace detail

/// What the codecs need to know beyond the page.
struct UnitEncoding {
  float g;
  ScalePolicy policy;
};

/// Encodes and stores `x`, which it may change, as block `block` of row (head, token) of a page.
__device__ __forceinline__ void store_unit(const PagePlane& plane, uint8_t* page, uint32_t head, uint32_t token,
                                           uint32_t block, const UnitEncoding& encoding, float (&x)[kUnit]) {
  uint8_t* data = page + plane.data_offset(head, token, block);
  if (plane.format != KvFormat::kNvfp4) {
    detail::store_elements(plane.format, data, encoding.g, x);
    return;
  }
  detail::clear_nans(x);
  const Nvfp4Unit unit = encode_nvfp4_unit(x, encoding.g, encoding.policy, plane.code_order);
  store_words(data, unit.words);
  page[plane.scale_offset(head, token, block)] = unit.scale;
}

/// The same with four elements a lane, the `part`-th of their row; `stores` is alike in the lanes of a block. All lanes
/// of the warp take part.
__device__ __forceinline__ void store_unit(const PagePlane& plane, uint8_t* page, uint32_t head, uint32_t token,
                                           uint32_t part, const UnitEncoding& encoding, float (&x)[kQuadUnit],
                                           bool stores) {
  constexpr uint32_t kParts = kUnit / kQuadUnit;
  uint8_t* data = page + plane.data_offset(head, token, 0) + part * (plane.data_unit / kParts);
  const bool in_blocks = plane.format == KvFormat::kNvfp4;
  if (__any_sync(detail::kAllLanes, stores && in_blocks)) {
    float values[kQuadUnit];
#pragma unroll
    for (int i = 0; i < kQuadUnit; ++i) values[i] = x[i];
    detail::clear_nans(values);
    const Nvfp4Quad quad = encode_nvfp4_quad(values, encoding.g, encoding.policy, plane.code_order);
    if (stores && in_blocks) {
      const uint32_t words[1] = {quad.word};
      if (part % 2 == 0) store_words(data, words);
      if (part % kParts == 0) page[plane.scale_offset(head, token, part / kParts)] = quad.scale;
      return;
    }
  }
  if (stores) detail::store_elements(plane.format, data, encoding.g, x);
}

/// Block `block` of row (head, token) of a page, times g.
__device__ __forceinline__ void load_page_unit(const PagePlane& plane, const uint8_t* page, uint32_t head,
                                               uint32_t token, uint32_t block, float g, float (&x)[kUnit]) {
  const uint8_t* data = page + plane.data_offset(head, token, block);
  switch (plane.format) {
    case KvFormat::kF32: load_unit(data, DType::kF32, x); return;
    case KvFormat::kF16: load_unit(data, DType::kF16, x); return;
    case KvFormat::kBf16: load_unit(data, DType::kBf16, x); return;
    case KvFormat::kE4m3:
    case KvFormat::kE5m2: {
      uint32_t words[kUnit / 4];
      load_words(data, words);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        const auto code = static_cast<uint8_t>(words[i / 4] >> 8 * (i % 4));
        x[i] = plane.format == KvFormat::kE4m3 ? decode_e4m3(code, g) : decode_e5m2(code, g);
      }
      return;
    }
    case KvFormat::kNvfp4: {
      uint32_t words[kUnit / 8];
      load_words(data, words);
      const uint8_t scale = page[plane.scale_offset(head, token, block)];
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        const uint32_t word = words[i / 8];
        x[i] = decode_nvfp4(
            plane.code_order == CodeOrder::kLinear ? linear_code(word, i % 8) : packed_code(word, i % 8), scale, g);
      }
      return;
    }
  }
}

}  // namespace kvant::attn::cuda
