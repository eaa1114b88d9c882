#pragma once

#include <memory>

#include "ops/linear.h"

namespace kvant::ops {

/// int8 weights with a scale per output; activations are rounded per row to about 14 bits.
Result<std::unique_ptr<Linear>> create_int8_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                                   int64_t max_rows, Stream stream);

}  // namespace kvant::ops
