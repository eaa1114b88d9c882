#pragma once

// Include before any Highway header. SSE4 brings nothing over the SSSE3 baseline here, and code is written for vectors
// of fixed size. Sanitizer builds keep the baseline and AVX2: the other x86 sets are the same code in wider vectors,
// and with checks each takes minutes to compile.
#include <hwy/detect_compiler_arch.h>

#if HWY_ARCH_X86 && defined(KVANT_SANITIZED)
#define HWY_DISABLED_TARGETS (HWY_SSE4 | (HWY_AVX2 - 1))
#elif HWY_ARCH_X86
#define HWY_DISABLED_TARGETS HWY_SSE4
#elif HWY_ARCH_ARM
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
