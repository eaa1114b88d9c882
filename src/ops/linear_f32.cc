#include "ops/linear_f32.h"

#include <algorithm>
#include <new>
#include <vector>

#include <fmt/format.h>

#include "core/large_pages.h"
#include "kvant/core/thread_pool.h"
#include "ops/f32_kernel.h"
#include "ops/linear_cpu.h"
#include "ops/panel_tasks.h"

namespace kvant::ops {
namespace {

class F32Linear final : public CpuLinear {
 public:
  F32Linear(int64_t out_features, int64_t in_features)
      : out_features_(out_features),
        in_features_(in_features),
        num_panels_(divide_up(out_features, kPanelOutputs)),
        panels_(static_cast<size_t>(num_panels_ * kPanelOutputs * in_features)) {}

  void pack(const WeightRows& rows, ThreadPool& pool) {
    std::vector<std::vector<float>> plain(static_cast<size_t>(pool.num_threads()));
    for (auto& buffer : plain) buffer.resize(static_cast<size_t>(kPanelOutputs * in_features_));
    pool.parallel_for(num_panels_, [&](int64_t panel, int worker) {
      float* values = plain[static_cast<size_t>(worker)].data();
      const int64_t begin = panel * kPanelOutputs;
      const int64_t num_outputs = std::min(kPanelOutputs, out_features_ - begin);
      rows(begin, begin + num_outputs, values);
      float* packed = panels_.data() + begin * in_features_;
      for (int64_t output = 0; output < num_outputs; ++output) {
        for (int64_t in = 0; in < in_features_; ++in) {
          packed[in * kPanelOutputs + output] = values[output * in_features_ + in];
        }
      }
    });
    gather_large_pages(panels_.data(), panels_.size() * sizeof(panels_[0]));
  }

  void multiply(const float* x, int64_t num_rows, float* y, Stream stream) override {
    const F32Panels weights{panels_.data(), in_features_, out_features_};
    const int64_t row_bytes = in_features_ * int64_t{sizeof(float)};
    for_panel_tasks(num_rows, row_bytes, num_panels_, *stream.pool,
                    [&](int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
                      multiply_f32_panels(x + row_begin * in_features_, row_end - row_begin, weights, panel_begin,
                                          panel_end, y + row_begin * out_features_);
                    });
  }

  int64_t out_features() const override { return out_features_; }
  int64_t in_features() const override { return in_features_; }
  int64_t weight_bytes() const override { return static_cast<int64_t>(panels_.size() * sizeof(float)); }

 private:
  int64_t out_features_;
  int64_t in_features_;
  int64_t num_panels_;
  LargePageVector<float> panels_;
};

}  // namespace

Result<std::unique_ptr<Linear>> create_f32_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                                  Stream stream) {
  try {
    auto linear = std::make_unique<F32Linear>(out_features, in_features);
    linear->pack(rows, *stream.pool);
    return linear;
  } catch (const std::bad_alloc&) {
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("no memory for an f32 weight of {} x {}", out_features, in_features));
  }
}

}  // namespace kvant::ops
