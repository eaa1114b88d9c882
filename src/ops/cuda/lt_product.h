#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "core/device_memory.h"
#include "kvant/core/status.h"
#include "ops/cuda/cublas_lt.h"
#include "ops/linear.h"

namespace kvant::ops::cuda {

/// cuBLASLt on one device, with memory that one product at a time works in.
class LtDevice {
 public:
  static Result<std::shared_ptr<const LtDevice>> create();
  ~LtDevice();
  LtDevice(const LtDevice&) = delete;
  LtDevice& operator=(const LtDevice&) = delete;

  const CublasLt& lt() const { return *lt_; }
  cublasLtHandle_t handle() const { return handle_; }
  std::byte* workspace() const { return workspace_.data(); }
  size_t workspace_bytes() const { return static_cast<size_t>(workspace_.bytes()); }

 private:
  explicit LtDevice(std::shared_ptr<const CublasLt> lt) : lt_(std::move(lt)) {}

  std::shared_ptr<const CublasLt> lt_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
};

struct LtShape {
  int64_t out_features = 0;
  int64_t in_features = 0;
  int64_t num_rows = 0;
  LinearOutput output = LinearOutput::kActivations;
  bool blocks = false;  ///< Of scales of an e4m3 weight: of 128 x 128 values, not of 128 values of a row.

  friend auto operator<=>(const LtShape&, const LtShape&) = default;
};

/// Scales of e4m3 codes in device memory; those of x belong to 128 values of a row.
struct LtScales {
  const float* weight = nullptr;
  const float* x = nullptr;
};

/// Products of a shape, y [num_rows, out] = x [num_rows, in] W^T, as the column-major y^T = W x^T of the library, by
/// the algorithm that it advises: of bf16, or with scales of e4m3.
class LtProduct {
 public:
  static Result<std::unique_ptr<LtProduct>> create(std::shared_ptr<const LtDevice> device, const LtShape& shape,
                                                   const LtScales* scales = nullptr);
  ~LtProduct();
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;

  /// `scales` if it was created with some. `stream` is a cudaStream_t.
  Status run(const void* weight, const void* x, void* y, void* stream, const LtScales* scales = nullptr) const;

 private:
  LtProduct(std::shared_ptr<const LtDevice> device, LinearOutput output)
      : device_(std::move(device)), output_(output) {}

  template <class T>
  Status set(cublasLtMatmulDescAttributes_t attribute, const T& value) const;
  Status set_scales(const LtScales& scales) const;
  Status choose_algorithm(const LtShape& shape, bool fp8);

  std::shared_ptr<const LtDevice> device_;
  LinearOutput output_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

/// Products of all shapes that have been asked for, all of bf16 or all with scales. Only a new shape allocates.
class LtProducts {
 public:
  explicit LtProducts(std::shared_ptr<const LtDevice> device) : device_(std::move(device)) {}

  /// As LtProduct::create.
  Result<const LtProduct*> find(const LtShape& shape, const LtScales* scales = nullptr);

 private:
  std::shared_ptr<const LtDevice> device_;
  std::map<LtShape, std::unique_ptr<LtProduct>> products_;
};

}  // namespace kvant::ops::cuda
