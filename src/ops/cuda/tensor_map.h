#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvant/core/status.h"

namespace kvant::ops::cuda {

/// How the copy engine of Hopper GPUs knows a matrix: a CUtensorMap.
using TensorMap = std::array<std::byte, 128>;

/// A bf16 matrix [num_rows, num_columns] in device memory, to be copied in boxes of `box_rows` x `box_columns`, rows of
/// 128 bytes that are swizzled.
struct MatrixBoxes {
  const void* matrix = nullptr;
  int64_t num_rows = 0;
  int64_t num_columns = 0;  ///< A multiple of 8.
  int32_t box_rows = 0;     ///< At most 256.
  int32_t box_columns = 64;
};

Result<TensorMap> make_tensor_map(const MatrixBoxes& boxes);
/// A box takes eight rows of one half of the matrix beside eight of the other. num_rows and box_rows are multiples
/// of 16.
Result<TensorMap> make_gated_tensor_map(const MatrixBoxes& boxes);

}  // namespace kvant::ops::cuda
