#include "ops/cuda/lt_product.h"

#include <utility>

#include <fmt/format.h>

namespace kvant::ops::cuda {
namespace {

/// What NVIDIA advises for Hopper; smaller parts take less of it.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

}  // namespace

Result<std::shared_ptr<const LtDevice>> LtDevice::create() {
  KVANT_ASSIGN_OR_FAIL(auto lt, CublasLt::load());
  std::shared_ptr<LtDevice> device(new LtDevice(std::move(lt)));
  KVANT_FAIL_IF_ERROR(device->lt_->check(device->lt_->create(&device->handle_), "cublasLtCreate"));
  KVANT_ASSIGN_OR_FAIL(device->workspace_,
                       DeviceBuffer::create(MemoryKind::kCuda, kWorkspaceBytes, "cuBLASLt's workspace"));
  return device;
}

LtDevice::~LtDevice() {
  if (handle_ != nullptr) lt_->destroy(handle_);
}

Result<std::unique_ptr<LtProduct>> LtProduct::create(std::shared_ptr<const LtDevice> device, const LtShape& shape,
                                                     const LtScales* scales) {
  std::unique_ptr<LtProduct> product(new LtProduct(std::move(device), shape.output));
  const CublasLt& lt = product->device_->lt();
  KVANT_FAIL_IF_ERROR(
      lt.check(lt.create_desc(&product->desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
  KVANT_FAIL_IF_ERROR(product->set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (scales != nullptr) {
    KVANT_FAIL_IF_ERROR(
        product->set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, shape.blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                                                     : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
    KVANT_FAIL_IF_ERROR(product->set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
    // The library finds no algorithm before it has seen pointers.
    KVANT_FAIL_IF_ERROR(product->set_scales(*scales));
  }
  const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType type, int64_t height, int64_t width) {
    return lt.check(lt.create_layout(&to, type, static_cast<uint64_t>(height), static_cast<uint64_t>(width), height),
                    "cublasLtMatrixLayoutCreate");
  };
  const cudaDataType type = scales != nullptr ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  KVANT_FAIL_IF_ERROR(layout(product->weight_, type, shape.in_features, shape.out_features));
  KVANT_FAIL_IF_ERROR(layout(product->x_, type, shape.in_features, shape.num_rows));
  KVANT_FAIL_IF_ERROR(layout(product->y_, shape.output == LinearOutput::kActivations ? CUDA_R_16BF : CUDA_R_32F,
                             shape.out_features, shape.num_rows));
  KVANT_FAIL_IF_ERROR(product->choose_algorithm(shape, scales != nullptr));
  return product;
}

LtProduct::~LtProduct() {
  const CublasLt& lt = device_->lt();
  if (desc_ != nullptr) lt.destroy_desc(desc_);
  for (const cublasLtMatrixLayout_t layout : {weight_, x_, y_})
    if (layout != nullptr) lt.destroy_layout(layout);
}

template <class T>
Status LtProduct::set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
  const CublasLt& lt = device_->lt();
  return lt.check(lt.set_desc(desc_, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}

Status LtProduct::set_scales(const LtScales& scales) const {
  KVANT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.weight));
  return set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.x);
}

Status LtProduct::choose_algorithm(const LtShape& shape, bool fp8) {
  const CublasLt& lt = device_->lt();
  cublasLtMatmulPreference_t preference = nullptr;
  KVANT_RETURN_IF_ERROR(lt.check(lt.create_preference(&preference), "cublasLtMatmulPreferenceCreate"));
  const uint64_t bytes = device_->workspace_bytes();
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  Status status =
      lt.check(lt.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
               "cublasLtMatmulPreferenceSetAttribute");
  if (status.ok()) {
    const cublasStatus_t code =
        lt.get_heuristic(device_->handle(), desc_, weight_, x_, y_, y_, preference, 1, &found, &count);
    if (code != CUBLAS_STATUS_NOT_SUPPORTED) status = lt.check(code, "cublasLtMatmulAlgoGetHeuristic");
  }
  lt.destroy_preference(preference);
  KVANT_RETURN_IF_ERROR(status);
  if (count == 0)
    return {StatusCode::kUnsupported, fmt::format("cuBLASLt has no product of {} rows with a{} weight of {} x {}{}",
                                                  shape.num_rows, fp8 ? "n fp8" : " bf16", shape.out_features,
                                                  shape.in_features, fp8 ? "; use --weights bf16" : "")};
  algorithm_ = found.algo;
  return {};
}

Status LtProduct::run(const void* weight, const void* x, void* y, void* stream, const LtScales* scales) const {
  if (scales != nullptr) KVANT_RETURN_IF_ERROR(set_scales(*scales));
  const float alpha = 1.0f;
  const float beta = output_ == LinearOutput::kAddF32 ? 1.0f : 0.0f;
  const CublasLt& lt = device_->lt();
  return lt.check(lt.matmul(device_->handle(), desc_, &alpha, weight, weight_, x, x_, &beta, y, y_, y, y_, &algorithm_,
                            device_->workspace(), device_->workspace_bytes(), static_cast<cudaStream_t>(stream)),
                  "cublasLtMatmul");
}

Result<const LtProduct*> LtProducts::find(const LtShape& shape, const LtScales* scales) {
  if (const auto found = products_.find(shape); found != products_.end()) return found->second.get();
  KVANT_ASSIGN_OR_FAIL(std::unique_ptr<LtProduct> product, LtProduct::create(device_, shape, scales));
  return products_.emplace(shape, std::move(product)).first->second.get();
}

}  // namespace kvant::ops::cuda
