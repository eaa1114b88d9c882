#pragma once

#include <memory>
#include <string_view>

#include <cublasLt.h>

#include "kvant/core/status.h"

namespace kvant::ops::cuda {

/// The functions of cuBLASLt that are used, from the library found at run time: the program starts, and runs on the
/// CPU, where there is none.
class CublasLt {
 public:
  /// kUnsupported, with where it was sought, when there is no library of the version that this build was made for.
  static Result<std::shared_ptr<const CublasLt>> load();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// kCudaError with the call and the library's text.
  Status check(cublasStatus_t status, std::string_view call) const;

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_desc = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;

 private:
  CublasLt() = default;
  void* library_ = nullptr;
};

}  // namespace kvant::ops::cuda
