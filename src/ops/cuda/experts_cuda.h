#pragma once

#include "ops/experts.h"

namespace kvant::ops::cuda {

/// `context` is one of create_linear_context.
Result<std::unique_ptr<Experts>> create_experts(const ExpertsShape& shape, const ExpertsWeights& weights,
                                                int64_t max_rows, Stream stream, LinearContext* context);

}  // namespace kvant::ops::cuda
