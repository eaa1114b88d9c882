#include "ops/cuda/experts_cuda.h"

namespace kvant::ops::cuda {

Result<std::unique_ptr<Experts>> create_experts(const ExpertsShape&, const ExpertsWeights&, int64_t, Stream,
                                                LinearContext*) {
  return failure(StatusCode::kUnsupported, "experts are not built for CUDA; run the model on the CPU");
}

}  // namespace kvant::ops::cuda
