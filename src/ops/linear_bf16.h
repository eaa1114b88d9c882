#pragma once

#include <memory>

#include "ops/linear.h"

namespace kvant::ops {

/// bf16 weights, multiplied by oneDNN on CPUs with bf16 instructions; activations are rounded to bf16.
Result<std::unique_ptr<Linear>> create_bf16_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                                   int64_t max_rows, Stream stream);

/// Whether this CPU multiplies bf16 natively.
bool has_bf16_instructions();

}  // namespace kvant::ops
