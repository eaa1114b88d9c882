#pragma once

#include <cstdint>

// Blackwell's conversions of e2m1, of which a byte holds two codes, the first in the low nibble: the linear code order.
// PTX ISA 8.6, "cvt", sm_100f, sm_110f and sm_120f.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define KVANT_HARDWARE_E2M1 1
#else
#define KVANT_HARDWARE_E2M1 0
#endif

namespace kvant::attn::cuda::detail {

#if KVANT_HARDWARE_E2M1

/// Byte i of eight codes to out[i], f16x2.
__device__ __forceinline__ void e2m1x8_to_f16x2(uint32_t word, uint32_t (&out)[4]) {
  asm("{.reg .b8 b0, b1, b2, b3;\n mov.b32 {b0, b1, b2, b3}, %4;\n cvt.rn.f16x2.e2m1x2 %0, b0;\n"
      "cvt.rn.f16x2.e2m1x2 %1, b1;\n cvt.rn.f16x2.e2m1x2 %2, b2;\n cvt.rn.f16x2.e2m1x2 %3, b3;}"
      : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
      : "r"(word));
}

/// The codes of two numbers >= 0, none NaN, nearest and to even ones from ties, 6 at most: `first` in the low nibble.
__device__ __forceinline__ uint32_t e2m1x2_codes(float first, float second) {
  uint32_t codes;
  asm("{.reg .b8 pair;\n cvt.rn.satfinite.e2m1x2.f32 pair, %2, %1;\n cvt.u32.u8 %0, pair;}"
      : "=r"(codes)
      : "f"(first), "f"(second));
  return codes;
}

#endif

}  // namespace kvant::attn::cuda::detail
