#include "ops/f32_kernel.h"

#include "core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/f32_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/panel_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::ops::HWY_NAMESPACE {

struct F32Tile {
  /// kRows rows by one panel.
  template <int64_t kRows>
  static HWY_NOINLINE void run(const float* HWY_RESTRICT x, const float* HWY_RESTRICT panel, int64_t in_features,
                               int64_t num_outputs, float* HWY_RESTRICT y, int64_t y_stride) {
    const Floats d;
    hn::Vec<Floats> sums[kRows][kVectors];
    HWY_UNROLL(16) for (int64_t row = 0; row < kRows; ++row) {
      HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) sums[row][v] = hn::Zero(d);
    }
    for (int64_t in = 0; in < in_features; ++in) {
      hn::Vec<Floats> weights[kVectors];
      HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) {
        weights[v] = hn::LoadU(d, panel + in * kPanelOutputs + v * kLanes);
      }
      HWY_UNROLL(16) for (int64_t row = 0; row < kRows; ++row) {
        const auto activation = hn::Set(d, x[row * in_features + in]);
        HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) {
          sums[row][v] = hn::MulAdd(weights[v], activation, sums[row][v]);
          keep_in_register(sums[row][v]);
        }
      }
    }
    HWY_UNROLL(16) for (int64_t row = 0; row < kRows; ++row) store_panel(sums[row], num_outputs, y + row * y_stride);
  }
};

void multiply_panels(const float* x, int64_t num_rows, const F32Panels& weights, int64_t panel_begin, int64_t panel_end,
                     float* y) {
  const int64_t height = tile_height(num_rows);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t output = panel * kPanelOutputs;
    const int64_t num_outputs = HWY_MIN(kPanelOutputs, weights.out_features - output);
    for (int64_t row = 0; row < num_rows; row += height) {
      run_tile<F32Tile>(HWY_MIN(height, num_rows - row), x + row * weights.in_features,
                        weights.weights + output * weights.in_features, weights.in_features, num_outputs,
                        y + row * weights.out_features + output, weights.out_features);
    }
  }
}

}  // namespace kvant::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvant::ops {

HWY_EXPORT(multiply_panels);

void multiply_f32_panels(const float* x, int64_t num_rows, const F32Panels& weights, int64_t panel_begin,
                         int64_t panel_end, float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_panels)(x, num_rows, weights, panel_begin, panel_end, y);
}

}  // namespace kvant::ops
#endif
