#pragma once

#include <memory>

#include "ops/linear.h"

namespace kvant::ops {

/// fp32 weights in panels of our own kernel.
Result<std::unique_ptr<Linear>> create_f32_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                                  Stream stream);

}  // namespace kvant::ops
