#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant::ops {

enum class LinearFormat : uint8_t { kF32, kBf16, kInt8 };

std::string_view to_string(LinearFormat format);

/// Fills rows [row_begin, row_end) of a weight [out_features, in_features] as fp32. Called from several threads.
using WeightRows = std::function<void(int64_t row_begin, int64_t row_end, float* out)>;

/// y = x W^T for a weight prepared once. Owns its packed weight. With kF32 and kInt8 a row's result has the same bits
/// in every batch and on any number of threads; with kBf16 oneDNN's order of sums may change with the number of rows.
class Linear {
 public:
  /// kUnsupported when this CPU lacks what the format needs.
  static Result<std::unique_ptr<Linear>> create(LinearFormat format, int64_t out_features, int64_t in_features,
                                                const WeightRows& rows, int64_t max_rows, Stream stream);
  virtual ~Linear() = default;

  /// x [num_rows, in_features] fp32, y [num_rows, out_features] fp32, num_rows <= max_rows. Allocates nothing after the
  /// first call with a given num_rows bucket.
  virtual void run(const float* x, int64_t num_rows, float* y, Stream stream) = 0;

  virtual int64_t out_features() const = 0;
  virtual int64_t in_features() const = 0;
  virtual int64_t weight_bytes() const = 0;
};

/// The format that weights take unless the user names one; docs/design/2026-11-29-linear-layers.md says why.
LinearFormat default_linear_format();

/// Formats this CPU runs with native instructions.
bool linear_format_supported(LinearFormat format);

}  // namespace kvant::ops
