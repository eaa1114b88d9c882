#include "ops/cuda/experts_cuda.h"

namespace kvant::ops::cuda {

Result<std::unique_ptr<Experts>> create_experts(const ExpertsShape&, const ExpertsWeights&, int64_t, Stream,
                                                LinearContext*) {
  return failure(StatusCode::kUnsupported, "this build has no CUDA; use the CPU, or build the preset cuda-sm90");
}

}  // namespace kvant::ops::cuda
