#pragma once

#include "kvant/attn/kv_format.h"
#include "kvant/attn/kv_spec.h"
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
  // Largest error of the kernel tests' problem list: 7.1e-6.
  constexpr double kAccumulation = 1e-5;
  switch (out) {
    case DType::kF32: return {kAccumulation, 0.0};
    case DType::kF16: return {kAccumulation, 0x1p-11};
    case DType::kBf16: return {kAccumulation, 0x1p-8};
  }
  return {};
}

/// |actual - expected| / |expected|, 2-norms over a whole output, of tensor-core kernels with 16-bit queries: the
/// weights and, for bf16 caches, the queries pass through 16 bits.
constexpr double tensor_core_relative_error() { return 3e-3; }
/// Their log-sum-exp. Conditioned queries are rounded to f16 after balance and rotation, and the tests' random balance,
/// 0.4 to 16, is far wider than a real one: largest error 6.1e-3.
constexpr Tolerance tensor_core_lse_tolerance(bool conditioned) {
  return conditioned ? Tolerance{1e-2, 1e-3} : Tolerance{3e-3, 1e-3};
}

/// Log-sum-exp in fp32 against fp64.
constexpr Tolerance lse_tolerance() { return {1e-5, 1e-6}; }

/// Logits of tiny models against transformers, both in fp32.
constexpr double golden_logit_tolerance() { return 1e-3; }

/// The same with a bf16 cache, for logits of size 1.
constexpr double golden_bf16_logit_tolerance() { return 2e-2; }

/// With a quantised cache and its scales against a reference that rounds keys of fp64: a key at the edge of two codes
/// may fall to either side.
constexpr double golden_kv_scale_tolerance() { return 2e-2; }

/// Logits of a tiny model whose cache differs in f16 rounding alone; measured 0.026, and whole units when conditioning
/// is wrong anywhere.
constexpr float f16_cache_logit_tolerance() { return 0.05f; }

/// Mean KL divergence of the tiny random model from an f32 cache. Random weights are far more sensitive than trained
/// ones: these bounds, about 1.5 times what is measured, tell a broken cache from a working one and formats from each
/// other.
inline double tiny_model_divergence(const attn::KvSpec& spec) {
  const bool helped = spec.edges.enabled() || spec.conditioning != attn::KeyConditioning::kNone;
  switch (spec.k_format) {
    case attn::KvFormat::kF32: return 1e-6;
    case attn::KvFormat::kF16: return spec.quantised() ? 0.06 : 1e-5;
    case attn::KvFormat::kBf16: return spec.quantised() ? 0.06 : 5e-4;
    case attn::KvFormat::kE4m3: return spec.v_format == spec.k_format ? (helped ? 0.065 : 0.09) : 0.12;
    case attn::KvFormat::kE5m2: return helped ? 0.21 : 0.31;
    case attn::KvFormat::kNvfp4: return helped ? 0.52 : 0.8;
  }
  return 0.0;
}

/// Logits of one model run in two ways that differ in the order of fp32 sums alone (batch shapes, chunks).
constexpr float reordering_tolerance() { return 1e-3f; }

/// What CUDA writes in bf16 against fp32 on the same bf16 inputs: half an ulp, and fp32 sums in another order, whose
/// error grows with the sum of magnitudes.
constexpr Tolerance bf16_activation_tolerance(double sum_of_magnitudes) { return {1e-5 * sum_of_magnitudes, 0x1p-8}; }
/// The same in fp32.
constexpr Tolerance f32_activation_tolerance(double sum_of_magnitudes) { return {1e-5 * sum_of_magnitudes, 1e-6}; }

/// |cuda - cpu| / |cpu|, 2-norms over rows of logits of a tiny random model, for bf16 activations in place of fp32
/// ones; measured 0.044 with a bf16 cache.
constexpr double cuda_activation_error() { return 0.06; }
/// The same of one layer of experts whose choice is clear: two roundings of activations to bf16.
constexpr double cuda_expert_error() { return 0.02; }
/// The same rows on CUDA in batches of another size, whose products add in another order.
constexpr double cuda_batch_error(attn::KvFormat format) { return format == attn::KvFormat::kNvfp4 ? 0.2 : 0.02; }

}  // namespace kvant::test
