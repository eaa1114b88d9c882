#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "kvant/attn/attention.h"
#include "kvant/attn/kv_format.h"
#include "kvant/attn/kv_layout.h"
#include "kvant/core/device.h"
#include "kvant/core/status.h"

namespace kvant::attn {

/// A small set of enum values.
template <class E>
struct EnumSet {
  uint32_t bits = 0;

  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<E> values) {
    for (E value : values) insert(value);
  }
  constexpr void insert(E value) { bits |= uint32_t{1} << static_cast<uint32_t>(value); }
  constexpr bool contains(E value) const { return (bits >> static_cast<uint32_t>(value) & 1u) != 0; }
  constexpr bool empty() const { return bits == 0; }
  /// What this set has and `other` lacks.
  constexpr EnumSet without(EnumSet other) const {
    EnumSet rest;
    rest.bits = bits & ~other.bits;
    return rest;
  }
  constexpr EnumSet with(EnumSet other) const {
    EnumSet all;
    all.bits = bits | other.bits;
    return all;
  }
  friend constexpr bool operator==(EnumSet, EnumSet) = default;
};

/// What a kernel does.
enum class AttnOp : uint8_t {
  kAppend,   ///< Quantise-and-write of new tokens.
  kDecode,   ///< Decode and verify rows.
  kPrefill,  ///< Extend and prefill rows.
  kMerge,    ///< Merging of partial results.
  kConvert,  ///< Ageing, conversion between orders, dequantisation.
};
inline constexpr AttnOp kAttnOps[] = {AttnOp::kAppend, AttnOp::kDecode, AttnOp::kPrefill, AttnOp::kMerge,
                                      AttnOp::kConvert};

constexpr std::string_view to_string(AttnOp op) {
  switch (op) {
    case AttnOp::kAppend: return "append";
    case AttnOp::kDecode: return "decode and verify";
    case AttnOp::kPrefill: return "prefill";
    case AttnOp::kMerge: return "merge";
    case AttnOp::kConvert: return "convert";
  }
  return "?";
}

/// What a configuration may ask of a kernel beyond formats and sizes. A kernel without it refuses; none is dropped.
enum class AttnFeature : uint8_t {
  kWindow,
  kSoftCap,
  kSinks,
  kFullMask,
  kPackedMask,
  kRagged,  ///< Requests of different lengths, and of none, in one run.
  kLse,
  kContextParallel,
  kExactPages,
  kConditioning,
  kBatchInvariant,
  kMixedFormats,   ///< K and V in different formats.
  kMixedHeadDims,  ///< K and V of different widths.
  kPackedCodes,
  kSm10xScales,
  kInterleavedPlanes,
  kLaneScales,
};
inline constexpr int kNumAttnFeatures = 17;

constexpr std::string_view to_string(AttnFeature feature) {
  switch (feature) {
    case AttnFeature::kWindow: return "sliding window";
    case AttnFeature::kSoftCap: return "soft cap";
    case AttnFeature::kSinks: return "sinks";
    case AttnFeature::kFullMask: return "full draft mask";
    case AttnFeature::kPackedMask: return "packed draft mask";
    case AttnFeature::kRagged: return "ragged batches";
    case AttnFeature::kLse: return "LSE";
    case AttnFeature::kContextParallel: return "context parallelism";
    case AttnFeature::kExactPages: return "exact pages";
    case AttnFeature::kConditioning: return "conditioned keys";
    case AttnFeature::kBatchInvariant: return "batch invariance";
    case AttnFeature::kMixedFormats: return "different K and V formats";
    case AttnFeature::kMixedHeadDims: return "different K and V head dims";
    case AttnFeature::kPackedCodes: return "packed code order";
    case AttnFeature::kSm10xScales: return "SM10x V-scale order";
    case AttnFeature::kInterleavedPlanes: return "interleaved planes";
    case AttnFeature::kLaneScales: return "lane scale order";
  }
  return "?";
}

using FormatSet = EnumSet<KvFormat>;
using FeatureSet = EnumSet<AttnFeature>;

/// Names, comma-separated, in enum order; "none" for an empty set.
std::string to_string(FormatSet formats);
std::string to_string(FeatureSet features);

/// The order of NVFP4 codes that a family's decode kernels read: linear where e2m1 is converted in hardware.
constexpr CodeOrder own_code_order(DeviceFamily family) {
  switch (family) {
    case DeviceFamily::kSm10x:
    case DeviceFamily::kSm11x:
    case DeviceFamily::kSm12x: return CodeOrder::kLinear;
    case DeviceFamily::kCpu:
    case DeviceFamily::kSm8x:
    case DeviceFamily::kSm90: break;
  }
  return CodeOrder::kPacked;
}

/// What a configuration asks for.
FeatureSet needed_features(const AttnDesc& desc);

/// How far a kernel can be captured in a CUDA graph. Each level includes those before it.
enum class GraphSupport : uint8_t {
  kNever,
  kSingleToken,   ///< Batches of one row a request.
  kUniformBatch,  ///< Batches of equally many rows a request.
  kAlways,        ///< Any batch within the limits.
};

constexpr std::string_view to_string(GraphSupport support) {
  switch (support) {
    case GraphSupport::kNever: return "never";
    case GraphSupport::kSingleToken: return "single token";
    case GraphSupport::kUniformBatch: return "uniform batch";
    case GraphSupport::kAlways: return "always";
  }
  return "?";
}

/// One kernel on one device family. The rows are the only statement of what kvant can do: dispatch, refusals,
/// capability queries and docs/support_matrix.md all read them.
struct KernelRow {
  AttnOp op;
  DeviceFamily family;
  std::string_view name;
  FormatSet formats;    ///< For K and for V.
  KvLimits limits;      ///< Page sizes, head dims of K and V, query heads per KV head.
  FeatureSet features;  ///< Those that do not concern the op are left out.
  GraphSupport graph;
  std::string_view verified_on;   ///< Where its tests have passed, such as "AVX2" or "H200"; empty = nowhere yet.
  std::string_view compiled_for;  ///< Further targets that it is built for and has not run on.
  FeatureSet required{};          ///< Features that a configuration must ask for: the kernel has no other way.
  /// Query rows of a request per KV head that it is made for; a plan with more takes the prefill row. 0 = any number.
  int32_t max_rows = 0;
};

/// Rows, and whether this build holds the CUDA code of the GPU rows. A value, so that tests can ask about other tables.
struct KernelTable {
  std::span<const KernelRow> rows;
  bool has_cuda = false;
};

/// What this build holds.
KernelTable kernel_table();

/// The first row that can do all of it, in table order: tuned kernels stand before general ones. kUnsupported says
/// what is needed and what the nearest row offers; a GPU family in a build without CUDA is named as such.
Result<const KernelRow*> select_kernel(AttnOp op, const DeviceInfo& device, const AttnDesc& desc,
                                       const KernelTable& table = kernel_table());

/// Whether every attention kernel of this build that `device` could be given has an image for it and fits its shared
/// memory; the text names the first that does not. For CUDA: `device` is the calling thread's current one. A plan's own
/// kernel is checked by make_plan too.
Status check_kernel_images(const DeviceInfo& device);

/// docs/support_matrix.md.
std::string support_matrix_markdown(const KernelTable& table = kernel_table());

}  // namespace kvant::attn
