#include "ops/cuda/tensor_map.h"

#include <cstring>
#include <string>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/cuda_status.h"

namespace kvant::ops::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);
static_assert(sizeof(CUtensorMap) == sizeof(TensorMap), "what callers keep");

/// The driver's library is not linked: programs built with CUDA start without one.
Result<Encode> find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  KVANT_FAIL_IF_ERROR(
      cuda_status(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
                  "cudaGetDriverEntryPointByVersion"));
  if (entry == nullptr || found != cudaDriverEntryPointSuccess)
    return failure(StatusCode::kUnsupported,
                   "the CUDA driver has no cuTensorMapEncodeTiled; it must be of CUDA 12 or later");
  return reinterpret_cast<Encode>(entry);
}

Result<TensorMap> make(const MatrixBoxes& boxes, bool gated) {
  KVANT_ASSIGN_OR_FAIL(const Encode encode, find_encode());
  const auto columns = static_cast<cuuint64_t>(boxes.num_columns), rows = static_cast<cuuint64_t>(boxes.num_rows);
  const cuuint64_t row_bytes = 2 * columns;
  const auto box_columns = static_cast<cuuint32_t>(boxes.box_columns);
  const auto box_rows = static_cast<cuuint32_t>(boxes.box_rows);
  const cuuint64_t plain_sizes[] = {columns, rows}, gated_sizes[] = {columns, 8, 2, rows / 16};
  const cuuint64_t plain_strides[] = {row_bytes}, gated_strides[] = {row_bytes, rows / 2 * row_bytes, 8 * row_bytes};
  const cuuint32_t plain_box[] = {box_columns, box_rows}, gated_box[] = {box_columns, 8, 2, box_rows / 16};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, gated ? 4 : 2, const_cast<void*>(boxes.matrix),
             gated ? gated_sizes : plain_sizes, gated ? gated_strides : plain_strides, gated ? gated_box : plain_box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    return failure(StatusCode::kCudaError, "cuTensorMapEncodeTiled: error " + std::to_string(result));
  TensorMap to;
  std::memcpy(to.data(), &map, sizeof(map));
  return to;
}

}  // namespace

Result<TensorMap> make_tensor_map(const MatrixBoxes& boxes) { return make(boxes, false); }
Result<TensorMap> make_gated_tensor_map(const MatrixBoxes& boxes) { return make(boxes, true); }

}  // namespace kvant::ops::cuda
