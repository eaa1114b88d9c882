#pragma once

#include <memory>

#include "ops/linear.h"

namespace kvant::ops {

/// fp32 or bf16 weights, multiplied by oneDNN.
Result<std::unique_ptr<Linear>> create_onednn_linear(LinearFormat format, int64_t out_features, int64_t in_features,
                                                     const WeightRows& rows, int64_t max_rows, Stream stream);

}  // namespace kvant::ops
