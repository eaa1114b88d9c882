#include "ops/cuda/linear_cuda.h"

namespace kvant::ops::cuda {
namespace {

tl::unexpected<Status> unsupported() {
  return failure(StatusCode::kUnsupported, "this build has no CUDA; use the CPU, or build the preset cuda-sm90");
}

}  // namespace

Result<std::unique_ptr<LinearContext>> create_linear_context(void*, ThreadPool&) { return unsupported(); }
Result<std::unique_ptr<Linear>> create_linear(int64_t, int64_t, const WeightRows&, LinearContext*) {
  return unsupported();
}
Result<std::unique_ptr<Linear>> create_fp8_linear(int64_t, int64_t, const Fp8WeightRows&, int64_t, Stream,
                                                  LinearContext*) {
  return unsupported();
}

}  // namespace kvant::ops::cuda
