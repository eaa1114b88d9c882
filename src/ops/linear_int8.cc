#include "ops/linear_int8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include <fmt/format.h>

#include "core/large_pages.h"
#include "kvant/core/thread_pool.h"
#include "ops/int8_kernel.h"
#include "ops/linear_cpu.h"
#include "ops/panel_tasks.h"
#include "ops/row_loop.h"

namespace kvant::ops {
namespace {

constexpr int64_t kAlignment = 64;

constexpr int64_t align_up(int64_t bytes) { return divide_up(bytes, kAlignment) * kAlignment; }

class Int8Linear final : public CpuLinear {
 public:
  Int8Linear(int64_t out_features, int64_t in_features)
      : out_features_(out_features),
        in_features_(in_features),
        num_panels_(divide_up(out_features, kPanelOutputs)),
        input_pairs_(divide_up(in_features, 2)),
        // An odd number of cache lines: rows of a tile then fall into different sets of the first-level cache.
        stride_((align_up(in_features * int64_t{sizeof(int16_t)}) | kAlignment) / int64_t{sizeof(int16_t)}),
        panels_(static_cast<size_t>(num_panels_ * panel_bytes())),
        scales_(static_cast<size_t>(num_panels_ * kPanelOutputs), 0.0f) {}

  void pack(const WeightRows& rows, ThreadPool& pool) {
    std::vector<int64_t> largest_sums(static_cast<size_t>(num_panels_));
    std::vector<std::vector<float>> plain(static_cast<size_t>(pool.num_threads()));
    for (auto& buffer : plain) buffer.resize(static_cast<size_t>(kPanelOutputs * in_features_));
    pool.parallel_for(num_panels_, [&](int64_t panel, int worker) {
      float* values = plain[static_cast<size_t>(worker)].data();
      const int64_t begin = panel * kPanelOutputs;
      const int64_t end = std::min(out_features_, begin + kPanelOutputs);
      rows(begin, end, values);
      int64_t& largest_sum = largest_sums[static_cast<size_t>(panel)];
      for (int64_t output = begin; output < end; ++output) {
        largest_sum = std::max(largest_sum, pack_output(values + (output - begin) * in_features_, output));
      }
    });
    gather_large_pages(panels_.data(), panels_.size() * sizeof(panels_[0]));
    const int64_t largest_sum = *std::max_element(largest_sums.begin(), largest_sums.end());
    activation_limit_ = static_cast<int32_t>(std::min<int64_t>(
        std::numeric_limits<int16_t>::max(), std::numeric_limits<int32_t>::max() / std::max<int64_t>(1, largest_sum)));
  }

  int64_t scratch_bytes(int64_t num_rows) const {
    return align_up(num_rows * int64_t{sizeof(float)}) + num_rows * stride_ * int64_t{sizeof(int16_t)};
  }

  void multiply(const float* x, int64_t num_rows, float* y, Stream stream) override {
    ThreadPool& pool = *stream.pool;
    std::byte* scratch = pool.scratch(scratch_bytes(num_rows));
    auto* row_scales = reinterpret_cast<float*>(scratch);
    auto* values = reinterpret_cast<int16_t*>(scratch + align_up(num_rows * int64_t{sizeof(float)}));
    quantise(x, num_rows, values, row_scales, pool);

    const Int8Panels weights{panels_.data(), scales_.data(), input_pairs_, out_features_};
    for_panel_tasks(num_rows, stride_ * int64_t{sizeof(int16_t)}, num_panels_, pool,
                    [&](int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
                      const QuantisedRows rows{values + row_begin * stride_, stride_, row_scales + row_begin};
                      multiply_int8_panels(rows, row_end - row_begin, weights, panel_begin, panel_end,
                                           y + row_begin * out_features_);
                    });
  }

  int64_t out_features() const override { return out_features_; }
  int64_t in_features() const override { return in_features_; }
  int64_t weight_bytes() const override {
    return static_cast<int64_t>(panels_.size() + scales_.size() * sizeof(float));
  }

 private:
  int64_t panel_bytes() const { return input_pairs_ * 2 * kPanelOutputs; }

  /// Returns the sum of the magnitudes, which bounds the product with any activations.
  int64_t pack_output(const float* values, int64_t output) {
    float largest = 0.0f;
    for (int64_t i = 0; i < in_features_; ++i) largest = std::max(largest, std::abs(values[i]));
    const float scale = largest / 127.0f;
    scales_[static_cast<size_t>(output)] = scale;
    if (scale == 0.0f) return 0;
    int8_t* packed = panels_.data() + output / kPanelOutputs * panel_bytes() + output % kPanelOutputs * 2;
    int64_t sum = 0;
    for (int64_t i = 0; i < in_features_; ++i) {
      const auto code = static_cast<int8_t>(std::clamp(std::nearbyint(values[i] / scale), -127.0f, 127.0f));
      packed[i / 2 * 2 * kPanelOutputs + i % 2] = code;
      sum += std::abs(code);
    }
    return sum;
  }

  void quantise(const float* x, int64_t num_rows, int16_t* values, float* row_scales, ThreadPool& pool) const {
    const auto quantise_range = [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        row_scales[row] = quantise_row(x + row * in_features_, in_features_, activation_limit_, values + row * stride_);
      }
    };
    for_row_blocks(num_rows, in_features_, Stream::on_cpu(pool), quantise_range);
  }

  int64_t out_features_;
  int64_t in_features_;
  int64_t num_panels_;
  int64_t input_pairs_;
  int64_t stride_;
  LargePageVector<int8_t> panels_;
  std::vector<float> scales_;
  int32_t activation_limit_ = 0;
};

}  // namespace

Result<std::unique_ptr<Linear>> create_int8_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                                   int64_t max_rows, Stream stream) {
  try {
    auto linear = std::make_unique<Int8Linear>(out_features, in_features);
    linear->pack(rows, *stream.pool);
    stream.pool->scratch(linear->scratch_bytes(max_rows));
    return linear;
  } catch (const std::bad_alloc&) {
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("no memory for an int8 weight of {} x {}", out_features, in_features));
  }
}

}  // namespace kvant::ops
