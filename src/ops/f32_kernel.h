#pragma once

#include <cstdint>

namespace kvant::ops {

struct F32Panels {
  const float* weights = nullptr;  ///< [num_panels, in_features, kPanelOutputs]
  int64_t in_features = 0;
  int64_t out_features = 0;
};

/// y [num_rows, out_features], columns of panels [panel_begin, panel_end), for x [num_rows, in_features]. Every output
/// is one sum in the order of the inputs, so its bits depend on its row and weights alone, not on the batch.
void multiply_f32_panels(const float* x, int64_t num_rows, const F32Panels& weights, int64_t panel_begin,
                         int64_t panel_end, float* y);

}  // namespace kvant::ops
