#include "ops/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include <fmt/format.h>

namespace kvant::ops::cuda {

Result<std::shared_ptr<const CublasLt>> CublasLt::load() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  std::shared_ptr<CublasLt> lt(new CublasLt());
  lt->library_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (lt->library_ == nullptr) {
    return failure(StatusCode::kUnsupported,
                   fmt::format("{} was not found ({}); install cuBLAS {} or add its folder to LD_LIBRARY_PATH", name,
                               ::dlerror(), CUBLAS_VER_MAJOR));
  }
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(lt->library_, symbol));
    if (function == nullptr) missing = symbol;
  };
  find(lt->create, "cublasLtCreate");
  find(lt->destroy, "cublasLtDestroy");
  find(lt->status_string, "cublasLtGetStatusString");
  find(lt->matmul, "cublasLtMatmul");
  find(lt->get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt->create_desc, "cublasLtMatmulDescCreate");
  find(lt->destroy_desc, "cublasLtMatmulDescDestroy");
  find(lt->set_desc, "cublasLtMatmulDescSetAttribute");
  find(lt->create_layout, "cublasLtMatrixLayoutCreate");
  find(lt->destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(lt->create_preference, "cublasLtMatmulPreferenceCreate");
  find(lt->destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(lt->set_preference, "cublasLtMatmulPreferenceSetAttribute");
  if (missing != nullptr) return failure(StatusCode::kUnsupported, fmt::format("{} has no {}", name, missing));
  return lt;
}

CublasLt::~CublasLt() {
  if (library_ != nullptr) ::dlclose(library_);
}

Status CublasLt::check(cublasStatus_t status, std::string_view call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {StatusCode::kCudaError, fmt::format("{}: {}", call, status_string(status))};
}

}  // namespace kvant::ops::cuda
