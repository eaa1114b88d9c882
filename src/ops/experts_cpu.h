#pragma once

#include "ops/experts.h"

namespace kvant::ops {

Result<std::unique_ptr<Experts>> create_cpu_experts(const ExpertsShape& shape, ExpertsWeights weights,
                                                    LinearFormat format, int64_t max_rows, Stream stream);

}  // namespace kvant::ops
