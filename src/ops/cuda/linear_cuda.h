#pragma once

#include <cstdint>
#include <memory>

#include "kvant/core/status.h"
#include "kvant/core/thread_pool.h"
#include "ops/linear.h"

namespace kvant::ops::cuda {

/// cuBLASLt, found at run time, with its workspace, plans and staging memory. `stream` is a cudaStream_t.
Result<std::unique_ptr<LinearContext>> create_linear_context(void* stream, ThreadPool& loaders);

/// bf16 weights. `context` is one of the above.
Result<std::unique_ptr<Linear>> create_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                              LinearContext* context);

/// e4m3 weights of a shape that the context multiplies.
Result<std::unique_ptr<Linear>> create_fp8_linear(int64_t out_features, int64_t in_features, const Fp8WeightRows& rows,
                                                  int64_t max_rows, Stream stream, LinearContext* context);

}  // namespace kvant::ops::cuda
