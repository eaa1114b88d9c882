#pragma once

#include <cstdint>
#include <vector>

#include "kvant/attn/kv_layout.h"

namespace kvant::attn::test {

inline constexpr TokenHeadOrder kTokenHeadOrders[] = {TokenHeadOrder::kNhd, TokenHeadOrder::kHnd};
inline constexpr CodeOrder kCodeOrders[] = {CodeOrder::kLinear, CodeOrder::kPacked};
inline constexpr ScaleOrder kScaleOrders[] = {ScaleOrder::kLinear, ScaleOrder::kSm10xV, ScaleOrder::kLanes};
inline constexpr PlaneOrder kPlaneOrders[] = {PlaneOrder::kSplit, PlaneOrder::kInterleaved};

/// `sizes` in every combination of orders that is valid for it.
inline std::vector<KvLayout> in_all_orders(const KvLayout& sizes) {
  std::vector<KvLayout> layouts;
  for (const TokenHeadOrder order : kTokenHeadOrders) {
    for (const CodeOrder code_order : kCodeOrders) {
      for (const ScaleOrder scale_order : kScaleOrders) {
        for (const PlaneOrder plane_order : kPlaneOrders) {
          KvLayout layout = sizes;
          layout.order = order;
          layout.code_order = code_order;
          layout.scale_order = scale_order;
          layout.plane_order = plane_order;
          if (layout.validate().ok()) layouts.push_back(layout);
        }
      }
    }
  }
  return layouts;
}

}  // namespace kvant::attn::test
