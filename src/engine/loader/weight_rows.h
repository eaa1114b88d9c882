#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/loader/safetensors.h"
#include "kvant/core/status.h"
#include "ops/linear.h"

// Readers of checkpoint encodings to fp32 rows. Shapes must have been checked; tensors must outlive the readers, whose
// calls touch only the bytes of the rows asked for.
namespace kvant::engine {

/// F32, F16 or BF16 with `columns` elements per row, from row `first_row` on. kUnsupported for another type.
Result<ops::WeightRows> float_rows(const SafetensorsTensor& tensor, int64_t columns, int64_t first_row = 0);

/// All elements of a small F32, F16 or BF16 tensor.
Result<std::vector<float>> float_values(const SafetensorsTensor& tensor);

/// One scale for a block of rows and columns of a matrix of 8-bit floats.
struct BlockScales {
  std::vector<float> values;  ///< [ceil(rows / block_rows), ceil(columns / block_columns)]
  int64_t block_rows = 0;
  int64_t block_columns = 0;

  /// Those of a row of so many columns, one per block.
  const float* of_row(int64_t row, int64_t columns) const {
    return values.data() + row / block_rows * ((columns + block_columns - 1) / block_columns);
  }
};
/// e4m3 codes times their block's scale.
ops::WeightRows fp8_rows(const SafetensorsTensor& codes, int64_t columns, std::shared_ptr<const BlockScales> scales);
/// The codes themselves, with scales of groups; null where columns are no whole groups, or a block is less than one.
ops::Fp8WeightRows fp8_codes(const SafetensorsTensor& codes, int64_t columns,
                             std::shared_ptr<const BlockScales> scales);

/// Two e2m1 codes a byte (the even column in the low nibble), an e4m3 scale for 16 columns, a global scale.
ops::WeightRows nvfp4_rows(const SafetensorsTensor& codes, const SafetensorsTensor& block_scales, int64_t columns,
                           float global_scale);

/// Two e2m1 codes a byte (the even column in the low nibble), a power-of-two scale for 32 columns. Rows count from
/// `first_row` of the flattened tensors.
ops::WeightRows mxfp4_rows(const SafetensorsTensor& codes, const SafetensorsTensor& block_scales, int64_t columns,
                           int64_t first_row);

}  // namespace kvant::engine
