#include "attn/cpu/attention_kernels.h"

#include "core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attn/cpu/attention_kernels.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come first.
#include <hwy/highway.h>

#include "attn/cpu/conditioning-inl.h"
#include "attn/cpu/expand-inl.h"
#include "attn/cpu/panels-inl.h"
#include "attn/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {

const AttentionKernels* kernels() {
  static const AttentionKernels table{
      .isa = hwy::TargetName(HWY_TARGET),
      .lanes = static_cast<int32_t>(hn::Lanes(hn::ScalableTag<float>())),
      .expand_rows = expand_rows,
      .condition_query = attn::HWY_NAMESPACE::condition_query_row,
      .reads_in_place = reads_in_place,
      .row_scores = row_scores_of,
      .row_softmax = row_softmax,
      .row_values = row_values_of,
      .to_lane_order = to_lane_order,
      .add_lane_order = add_lane_order,
      .panel_scores = panel_scores,
      .panel_softmax = panel_softmax,
      .panel_values = panel_values,
      .merge_row = merge_row,
      .merge_panel = merge_panel,
  };
  return &table;
}

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvant::attn::cpu {

HWY_EXPORT(kernels);

const AttentionKernels& attention_kernels() { return *HWY_DYNAMIC_DISPATCH(kernels)(); }

}  // namespace kvant::attn::cpu
#endif
