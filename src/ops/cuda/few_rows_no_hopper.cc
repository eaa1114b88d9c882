#include "ops/cuda/few_rows.h"

namespace kvant::ops::cuda {
namespace {

constexpr const char* kNotBuilt = "this build has no kernels for Hopper; add 90a to KVANT_CUDA_ARCHITECTURES";

}  // namespace

Result<std::unique_ptr<FewRows>> FewRows::create(void*) { return nullptr; }
Result<FewRowsWeight> FewRows::describe(const void*, int64_t, int64_t) const {
  return failure(StatusCode::kUnsupported, kNotBuilt);
}
Result<FewRowsWeight> FewRows::describe(const void*, int64_t, int64_t, FewRowsCut) {
  return failure(StatusCode::kUnsupported, kNotBuilt);
}
Status FewRows::multiply(const FewRowsArgs&, void*) const { return {StatusCode::kUnsupported, kNotBuilt}; }

}  // namespace kvant::ops::cuda
