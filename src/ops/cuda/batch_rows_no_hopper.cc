#include "ops/cuda/batch_rows.h"

namespace kvant::ops::cuda {
namespace {

constexpr const char* kNotBuilt = "this build has no kernels for Hopper; add 90a to KVANT_CUDA_ARCHITECTURES";

}  // namespace

Result<std::unique_ptr<BatchRows>> BatchRows::create() { return nullptr; }
Result<BatchRowsWeight> BatchRows::describe(const void*, int64_t, int64_t) const {
  return failure(StatusCode::kUnsupported, kNotBuilt);
}
Result<BatchRowsWeight> BatchRows::describe(const void*, int64_t, int64_t, BatchRowsCut) {
  return failure(StatusCode::kUnsupported, kNotBuilt);
}
Status BatchRows::multiply(const BatchRowsArgs&, void*) const { return {StatusCode::kUnsupported, kNotBuilt}; }

}  // namespace kvant::ops::cuda
