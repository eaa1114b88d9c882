#pragma once

#include <cstdint>

#include "kvant/core/status.h"

namespace kvant::ops::cuda {

/// Rows of bf16 to e4m3 with an fp32 scale for every kFp8Group columns of a row: largest magnitude / 448, 1 where all
/// are zero; a code is value / scale. Rows from `num_rows` on become zeros.
struct QuantiseRowsArgs {
  const void* x = nullptr;  ///< [num_rows, columns] bf16
  int64_t num_rows = 0;
  int64_t padded_rows = 0;  ///< At least num_rows.
  int64_t columns = 0;      ///< A multiple of kFp8Group.
  void* codes = nullptr;    ///< [padded_rows, columns]
  float* scales = nullptr;  ///< [columns / kFp8Group, padded_rows]
};
/// `stream` is a cudaStream_t.
Status quantise_rows(const QuantiseRowsArgs& args, void* stream);

}  // namespace kvant::ops::cuda
