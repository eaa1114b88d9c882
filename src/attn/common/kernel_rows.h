#pragma once

#include "kvant/attn/kernel_table.h"

namespace kvant::attn {

inline constexpr FormatSet kAllFormats{KvFormat::kF32,  KvFormat::kF16,  KvFormat::kBf16,
                                       KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4};

inline constexpr FeatureSet kConvertFeatures{
    AttnFeature::kExactPages,  AttnFeature::kMixedFormats,      AttnFeature::kMixedHeadDims, AttnFeature::kPackedCodes,
    AttnFeature::kSm10xScales, AttnFeature::kInterleavedPlanes, AttnFeature::kLaneScales};
inline constexpr FeatureSet kAppendFeatures{
    AttnFeature::kExactPages,  AttnFeature::kConditioning, AttnFeature::kMixedFormats,      AttnFeature::kMixedHeadDims,
    AttnFeature::kPackedCodes, AttnFeature::kSm10xScales,  AttnFeature::kInterleavedPlanes, AttnFeature::kLaneScales};
inline constexpr FeatureSet kAllFeatures{AttnFeature::kWindow,
                                         AttnFeature::kSoftCap,
                                         AttnFeature::kSinks,
                                         AttnFeature::kFullMask,
                                         AttnFeature::kPackedMask,
                                         AttnFeature::kRagged,
                                         AttnFeature::kLse,
                                         AttnFeature::kContextParallel,
                                         AttnFeature::kExactPages,
                                         AttnFeature::kConditioning,
                                         AttnFeature::kBatchInvariant,
                                         AttnFeature::kMixedFormats,
                                         AttnFeature::kMixedHeadDims,
                                         AttnFeature::kPackedCodes,
                                         AttnFeature::kSm10xScales,
                                         AttnFeature::kInterleavedPlanes,
                                         AttnFeature::kLaneScales};
inline constexpr FeatureSet kMergeFeatures{AttnFeature::kSinks, AttnFeature::kLse};

/// Features that mean something to an op; the rest of a configuration is no concern of its kernels.
constexpr FeatureSet features_of(AttnOp op) {
  switch (op) {
    case AttnOp::kAppend: return kAppendFeatures;
    case AttnOp::kDecode: return kAllFeatures;
    case AttnOp::kPrefill: return kAllFeatures;
    case AttnOp::kMerge: return kMergeFeatures;
    case AttnOp::kConvert: return kConvertFeatures;
  }
  return kAllFeatures;
}

inline constexpr FormatSet kCudaFormats{KvFormat::kF16, KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kE5m2,
                                        KvFormat::kNvfp4};

/// The CUDA cache writers are the same source for every family.
constexpr KernelRow cuda_append(DeviceFamily family, std::string_view verified_on, std::string_view compiled_for) {
  return {AttnOp::kAppend,       family,      "cuda/append", kCudaFormats, kCudaKvLimits, kAppendFeatures,
          GraphSupport::kAlways, verified_on, compiled_for};
}
constexpr KernelRow cuda_convert(DeviceFamily family, std::string_view verified_on, std::string_view compiled_for) {
  return {AttnOp::kConvert,      family,      "cuda/convert", kCudaFormats, kCudaKvLimits, kConvertFeatures,
          GraphSupport::kAlways, verified_on, compiled_for};
}

constexpr KernelRow cuda_merge(DeviceFamily family, std::string_view verified_on, std::string_view compiled_for) {
  return {AttnOp::kMerge,        family,      "cuda/merge", kCudaFormats, kCudaKvLimits, kMergeFeatures,
          GraphSupport::kAlways, verified_on, compiled_for};
}

// cuda/decode_splitkv. A tile of 16 tokens lies in one page, or in two of 8 tokens; with exact pages only in one.
inline constexpr KvLimits kDecodeSplitkv16Bit{8, 256, 64, 64, 128, 64};
inline constexpr KvLimits kDecodeSplitkvQuantised{16, 256, 64, 64, 128, 64};
inline constexpr FeatureSet kDecodeSplitkv16BitFeatures{
    AttnFeature::kWindow,   AttnFeature::kSoftCap,         AttnFeature::kSinks,
    AttnFeature::kFullMask, AttnFeature::kPackedMask,      AttnFeature::kRagged,
    AttnFeature::kLse,      AttnFeature::kContextParallel, AttnFeature::kInterleavedPlanes};
inline constexpr FeatureSet kDecodeSplitkvE4m3Features =
    kDecodeSplitkv16BitFeatures.with(FeatureSet{AttnFeature::kExactPages, AttnFeature::kConditioning});
inline constexpr FeatureSet kDecodeSplitkvNvfp4Features =
    kDecodeSplitkvE4m3Features.without(FeatureSet{AttnFeature::kInterleavedPlanes});
constexpr FeatureSet own_nvfp4_orders(DeviceFamily family) {
  return own_code_order(family) == CodeOrder::kPacked ? FeatureSet{AttnFeature::kPackedCodes, AttnFeature::kLaneScales}
                                                      : FeatureSet{AttnFeature::kLaneScales};
}

/// Query rows per KV head up to which keys are read once.
inline constexpr int32_t kDecodeSplitkvRows = 32;
/// docs/gpu_runs.md says what ran.
inline constexpr std::string_view kDecodeSplitkvRun = "H200, 2026-12-01, 7e3dcba";
constexpr KernelRow decode_splitkv_bf16(AttnOp op, DeviceFamily family, std::string_view verified_on,
                                        std::string_view compiled_for) {
  return {op,
          family,
          "cuda/decode_splitkv_bf16",
          FormatSet{KvFormat::kBf16},
          kDecodeSplitkv16Bit,
          kDecodeSplitkv16BitFeatures,
          GraphSupport::kAlways,
          verified_on,
          compiled_for,
          {},
          kDecodeSplitkvRows};
}
constexpr KernelRow decode_splitkv_e4m3(AttnOp op, DeviceFamily family, std::string_view verified_on,
                                        std::string_view compiled_for) {
  return {op,
          family,
          "cuda/decode_splitkv_e4m3",
          FormatSet{KvFormat::kE4m3},
          kDecodeSplitkvQuantised,
          kDecodeSplitkvE4m3Features,
          GraphSupport::kAlways,
          verified_on,
          compiled_for,
          {},
          kDecodeSplitkvRows};
}
constexpr KernelRow decode_splitkv_nvfp4(AttnOp op, DeviceFamily family, std::string_view verified_on,
                                         std::string_view compiled_for) {
  return {
      op,
      family,
      own_code_order(family) == CodeOrder::kPacked ? "cuda/decode_splitkv_nvfp4" : "cuda/decode_splitkv_nvfp4_linear",
      FormatSet{KvFormat::kNvfp4},
      kDecodeSplitkvQuantised,
      kDecodeSplitkvNvfp4Features.with(own_nvfp4_orders(family)),
      GraphSupport::kAlways,
      verified_on,
      compiled_for,
      own_nvfp4_orders(family),
      kDecodeSplitkvRows};
}

// cuda/prefill_flash: any number of rows, so it also decodes what the kernels made for that leave out.
inline constexpr std::string_view kPrefillFlashName = "cuda/prefill_flash";
inline constexpr KvLimits kPrefillFlashLimits{8, 256, 16, 64, 512, 64};
inline constexpr FeatureSet kPrefillFlash16BitFeatures =
    kDecodeSplitkv16BitFeatures.with(FeatureSet{AttnFeature::kBatchInvariant, AttnFeature::kMixedHeadDims});
inline constexpr std::string_view kPrefillFlashRun = "H200, 2026-11-30, 4008f8b";
constexpr KernelRow prefill_flash(AttnOp op, DeviceFamily family, std::string_view name, FormatSet formats,
                                  FeatureSet features, std::string_view verified_on, std::string_view compiled_for) {
  return {op, family, name, formats, kPrefillFlashLimits, features, GraphSupport::kAlways, verified_on, compiled_for};
}
constexpr KernelRow prefill_flash_bf16(AttnOp op, DeviceFamily family, std::string_view verified_on,
                                       std::string_view compiled_for) {
  return prefill_flash(op, family, "cuda/prefill_flash_bf16", FormatSet{KvFormat::kBf16}, kPrefillFlash16BitFeatures,
                       verified_on, compiled_for);
}
constexpr KernelRow prefill_flash_f16(AttnOp op, DeviceFamily family, std::string_view verified_on,
                                      std::string_view compiled_for) {
  return prefill_flash(op, family, "cuda/prefill_flash_f16", FormatSet{KvFormat::kF16}, kPrefillFlash16BitFeatures,
                       verified_on, compiled_for);
}
constexpr KernelRow prefill_flash_quantised(AttnOp op, DeviceFamily family, std::string_view verified_on,
                                            std::string_view compiled_for) {
  return prefill_flash(op, family, "cuda/prefill_flash_quantised",
                       FormatSet{KvFormat::kF16, KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4}, kAllFeatures,
                       verified_on, compiled_for);
}

/// The one table. A row is a promise: only kernels that are in the tree stand here, and `verified_on` names only
/// places where the kernel tests have passed.
inline constexpr KernelRow kKernelRows[] = {
    {AttnOp::kAppend, DeviceFamily::kCpu, "cpu/append", kAllFormats, kCpuKvLimits, kAppendFeatures,
     GraphSupport::kNever, "AVX2", "SSSE3, AVX-512, NEON"},
    {AttnOp::kDecode, DeviceFamily::kCpu, "cpu/attention", kAllFormats, kCpuKvLimits, kAllFeatures,
     GraphSupport::kNever, "AVX2", "SSSE3, AVX-512, NEON"},
    {AttnOp::kPrefill, DeviceFamily::kCpu, "cpu/attention", kAllFormats, kCpuKvLimits, kAllFeatures,
     GraphSupport::kNever, "AVX2", "SSSE3, AVX-512, NEON"},
    {AttnOp::kMerge, DeviceFamily::kCpu, "cpu/merge", kAllFormats, kCpuKvLimits, kMergeFeatures, GraphSupport::kNever,
     "AVX2", "SSSE3, AVX-512, NEON"},
    {AttnOp::kConvert, DeviceFamily::kCpu, "cpu/convert", kAllFormats, kCpuKvLimits, kConvertFeatures,
     GraphSupport::kNever, "AVX2", "SSSE3, AVX-512, NEON"},
    cuda_append(DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    cuda_append(DeviceFamily::kSm90, "H200, 2026-12-01, 7e3dcba", ""),
    cuda_append(DeviceFamily::kSm10x, "", "SM100"),
    cuda_append(DeviceFamily::kSm11x, "", "SM110"),
    cuda_append(DeviceFamily::kSm12x, "", "SM120"),
    cuda_convert(DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    cuda_convert(DeviceFamily::kSm90, "H200, 2026-12-01, 7e3dcba", ""),
    cuda_convert(DeviceFamily::kSm10x, "", "SM100"),
    cuda_convert(DeviceFamily::kSm11x, "", "SM110"),
    cuda_convert(DeviceFamily::kSm12x, "", "SM120"),
    cuda_merge(DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    cuda_merge(DeviceFamily::kSm90, "H200, 2026-12-01, 7e3dcba", ""),
    cuda_merge(DeviceFamily::kSm10x, "", "SM100"),
    cuda_merge(DeviceFamily::kSm11x, "", "SM110"),
    cuda_merge(DeviceFamily::kSm12x, "", "SM120"),
    decode_splitkv_bf16(AttnOp::kDecode, DeviceFamily::kSm90, kDecodeSplitkvRun, ""),
    decode_splitkv_e4m3(AttnOp::kDecode, DeviceFamily::kSm90, kDecodeSplitkvRun, ""),
    decode_splitkv_nvfp4(AttnOp::kDecode, DeviceFamily::kSm90, kDecodeSplitkvRun, ""),
    prefill_flash_bf16(AttnOp::kDecode, DeviceFamily::kSm90, kPrefillFlashRun, ""),
    prefill_flash_f16(AttnOp::kDecode, DeviceFamily::kSm90, kPrefillFlashRun, ""),
    prefill_flash_quantised(AttnOp::kDecode, DeviceFamily::kSm90, kPrefillFlashRun, ""),
    prefill_flash_bf16(AttnOp::kPrefill, DeviceFamily::kSm90, kPrefillFlashRun, ""),
    prefill_flash_f16(AttnOp::kPrefill, DeviceFamily::kSm90, kPrefillFlashRun, ""),
    prefill_flash_quantised(AttnOp::kPrefill, DeviceFamily::kSm90, kPrefillFlashRun, ""),
    decode_splitkv_bf16(AttnOp::kDecode, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    decode_splitkv_e4m3(AttnOp::kDecode, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    decode_splitkv_nvfp4(AttnOp::kDecode, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    prefill_flash_bf16(AttnOp::kDecode, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    prefill_flash_f16(AttnOp::kDecode, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    prefill_flash_quantised(AttnOp::kDecode, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    prefill_flash_bf16(AttnOp::kPrefill, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    prefill_flash_f16(AttnOp::kPrefill, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    prefill_flash_quantised(AttnOp::kPrefill, DeviceFamily::kSm8x, "", "SM80, SM86, SM89"),
    decode_splitkv_bf16(AttnOp::kDecode, DeviceFamily::kSm10x, "", "SM100"),
    decode_splitkv_e4m3(AttnOp::kDecode, DeviceFamily::kSm10x, "", "SM100"),
    decode_splitkv_nvfp4(AttnOp::kDecode, DeviceFamily::kSm10x, "", "SM100"),
    prefill_flash_bf16(AttnOp::kDecode, DeviceFamily::kSm10x, "", "SM100"),
    prefill_flash_f16(AttnOp::kDecode, DeviceFamily::kSm10x, "", "SM100"),
    prefill_flash_quantised(AttnOp::kDecode, DeviceFamily::kSm10x, "", "SM100"),
    prefill_flash_bf16(AttnOp::kPrefill, DeviceFamily::kSm10x, "", "SM100"),
    prefill_flash_f16(AttnOp::kPrefill, DeviceFamily::kSm10x, "", "SM100"),
    prefill_flash_quantised(AttnOp::kPrefill, DeviceFamily::kSm10x, "", "SM100"),
    decode_splitkv_bf16(AttnOp::kDecode, DeviceFamily::kSm11x, "", "SM110"),
    decode_splitkv_e4m3(AttnOp::kDecode, DeviceFamily::kSm11x, "", "SM110"),
    decode_splitkv_nvfp4(AttnOp::kDecode, DeviceFamily::kSm11x, "", "SM110"),
    prefill_flash_bf16(AttnOp::kDecode, DeviceFamily::kSm11x, "", "SM110"),
    prefill_flash_f16(AttnOp::kDecode, DeviceFamily::kSm11x, "", "SM110"),
    prefill_flash_quantised(AttnOp::kDecode, DeviceFamily::kSm11x, "", "SM110"),
    prefill_flash_bf16(AttnOp::kPrefill, DeviceFamily::kSm11x, "", "SM110"),
    prefill_flash_f16(AttnOp::kPrefill, DeviceFamily::kSm11x, "", "SM110"),
    prefill_flash_quantised(AttnOp::kPrefill, DeviceFamily::kSm11x, "", "SM110"),
    decode_splitkv_bf16(AttnOp::kDecode, DeviceFamily::kSm12x, "", "SM120"),
    decode_splitkv_e4m3(AttnOp::kDecode, DeviceFamily::kSm12x, "", "SM120"),
    decode_splitkv_nvfp4(AttnOp::kDecode, DeviceFamily::kSm12x, "", "SM120"),
    prefill_flash_bf16(AttnOp::kDecode, DeviceFamily::kSm12x, "", "SM120"),
    prefill_flash_f16(AttnOp::kDecode, DeviceFamily::kSm12x, "", "SM120"),
    prefill_flash_quantised(AttnOp::kDecode, DeviceFamily::kSm12x, "", "SM120"),
    prefill_flash_bf16(AttnOp::kPrefill, DeviceFamily::kSm12x, "", "SM120"),
    prefill_flash_f16(AttnOp::kPrefill, DeviceFamily::kSm12x, "", "SM120"),
    prefill_flash_quantised(AttnOp::kPrefill, DeviceFamily::kSm12x, "", "SM120"),
};

}  // namespace kvant::attn
