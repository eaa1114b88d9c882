#pragma once

#include "kvant/attn/kv_format.h"
#include "kvant/core/dtype.h"

namespace kvant::test {

/// |actual - expected| <= absolute + relative * |expected|.
struct Tolerance {
  double absolute = 0.0;
  double relative = 0.0;
};

/// Attention output against the fp64 oracle on the same bytes, for values of magnitude up to 4: what fp32 accumulation
/// costs, plus half an ulp of the output's dtype. The format of K and V does not enter: its error is in the bytes.
constexpr Tolerance attention_tolerance(DType out) {
  // Largest error of the kernel tests' problem list: 4.4e-6.
  constexpr double kAccumulation = 1e-5;
  switch (out) {
    case DType::kF32: return {kAccumulation, 0.0};
    case DType::kF16: return {kAccumulation, 0x1p-11};
    case DType::kBf16: return {kAccumulation, 0x1p-8};
  }
  return {};
}

/// Log-sum-exp in fp32 against fp64.
constexpr Tolerance lse_tolerance() { return {1e-5, 1e-6}; }

/// Logits of tiny models against transformers, both in fp32.
constexpr double golden_logit_tolerance() { return 1e-3; }

/// Logits of one model run in two ways that differ in the order of fp32 sums alone (batch shapes, chunks).
constexpr float reordering_tolerance() { return 1e-3f; }

}  // namespace kvant::test
