#include "kvant/attn/kernel_table.h"

namespace kvant::attn {
namespace {

void append_name(std::string& text, std::string_view name) {
  if (!text.empty()) text += ", ";
  text += name;
}

}  // namespace

std::string to_string(FormatSet formats) {
  std::string text;
  for (const KvFormatInfo& row : kKvFormats)
    if (formats.contains(row.format)) append_name(text, row.name);
  return text.empty() ? "none" : text;
}

std::string to_string(FeatureSet features) {
  std::string text;
  for (int i = 0; i < kNumAttnFeatures; ++i) {
    const AttnFeature feature = static_cast<AttnFeature>(i);
    if (features.contains(feature)) append_name(text, to_string(feature));
  }
  return text.empty() ? "none" : text;
}

FeatureSet needed_features(const AttnDesc& desc) {
  FeatureSet needed;
  const auto need_if = [&needed](bool condition, AttnFeature feature) {
    if (condition) needed.insert(feature);
  };
  need_if(desc.window > 0, AttnFeature::kWindow);
  need_if(desc.soft_cap > 0.0f, AttnFeature::kSoftCap);
  need_if(desc.sinks, AttnFeature::kSinks);
  need_if(desc.draft_mask == DraftMask::kFull, AttnFeature::kFullMask);
  need_if(desc.draft_mask == DraftMask::kPacked, AttnFeature::kPackedMask);
  need_if(desc.context_parallel.size > 1, AttnFeature::kContextParallel);
  need_if(desc.context_parallel.size > 1, AttnFeature::kLse);  // Partial results cannot be merged without it.
  need_if(desc.exact_pages, AttnFeature::kExactPages);
  need_if(desc.conditioning != KeyConditioning::kNone, AttnFeature::kConditioning);
  need_if(desc.batch_invariant, AttnFeature::kBatchInvariant);
  need_if(desc.layout.k_format != desc.layout.v_format, AttnFeature::kMixedFormats);
  need_if(desc.layout.head_dim_k != desc.layout.head_dim_v, AttnFeature::kMixedHeadDims);
  need_if(desc.layout.code_order == CodeOrder::kPacked, AttnFeature::kPackedCodes);
  need_if(desc.layout.scale_order == ScaleOrder::kSm10xV, AttnFeature::kSm10xScales);
  need_if(desc.layout.plane_order == PlaneOrder::kInterleaved, AttnFeature::kInterleavedPlanes);
  need_if(desc.layout.scale_order == ScaleOrder::kLanes, AttnFeature::kLaneScales);
  return needed;
}

}  // namespace kvant::attn
