#pragma once

#include <cstdint>

namespace kvant::ops {

/// Rows of 16-bit activations: value ~= int * scale.
struct QuantisedRows {
  const int16_t* values = nullptr;  ///< [num_rows, stride], zero from in_features on to the next multiple of 2
  int64_t stride = 0;
  const float* scales = nullptr;  ///< [num_rows]
};

/// Two neighbouring inputs of an output lie together, so that one multiply-add of 16-bit pairs advances it by both.
struct Int8Panels {
  const int8_t* weights = nullptr;  ///< [num_panels, input_pairs, kPanelOutputs, 2]
  const float* scales = nullptr;    ///< [num_panels * kPanelOutputs]
  int64_t input_pairs = 0;
  int64_t out_features = 0;
};

/// Quantises a row to integers of at most `limit`, rounding to nearest; returns the scale. A row with a NaN or an
/// infinity becomes zeros with a NaN scale.
float quantise_row(const float* x, int64_t in_features, int32_t limit, int16_t* values);

/// y [num_rows, out_features], columns of panels [panel_begin, panel_end). Sums are exact in 32-bit integers, so an
/// output's bits depend on its row and weights alone, not on the batch or on the vector width.
void multiply_int8_panels(const QuantisedRows& x, int64_t num_rows, const Int8Panels& weights, int64_t panel_begin,
                          int64_t panel_end, float* y);

}  // namespace kvant::ops
