#pragma once

#include <cstdint>
#include <memory>

#include "core/device_memory.h"
#include "kvant/core/status.h"
#include "ops/cuda/tensor_map.h"
#include "ops/linear.h"

namespace kvant::ops::cuda {

inline constexpr int kLeastBatchRows = 65, kMostBatchRows = 256;
/// Most rows of products that are cut into slices or whose tiles have fewer than 192 outputs.
inline constexpr int kMostSlicedRows = 192;

/// How a product is cut.
struct BatchRowsCut {
  int32_t outputs = 0;  ///< Of a tile: 96, 128 or 192; 0 = it is not taken.
  int32_t split = 1;    ///< Blocks that share a tile's inputs, at most 4; 1 for tiles of 192 outputs.
};

struct BatchRowsForm {
  BatchRowsCut cut;
  TensorMap map{};
};

/// A bf16 weight [out_features, in_features] as the copy engine knows it.
struct BatchRowsWeight {
  int64_t out_features = 0;
  int64_t in_features = 0;
  BatchRowsForm plain, gated;

  const BatchRowsForm& form(LinearOutput output) const { return output == LinearOutput::kGated ? gated : plain; }
  bool takes(int64_t num_rows, LinearOutput output) const {
    const int32_t outputs = form(output).cut.outputs;
    return num_rows >= kLeastBatchRows && num_rows <= (outputs < 192 ? kMostSlicedRows : kMostBatchRows) && outputs > 0;
  }
};

struct BatchRowsArgs {
  const BatchRowsWeight* weight = nullptr;
  const void* x = nullptr;  ///< [num_rows, in_features] bf16, aligned by 16
  void* y = nullptr;        ///< [num_rows, out_features], as `output` says
  int64_t num_rows = 0;     ///< What the weight takes.
  LinearOutput output = LinearOutput::kActivations;
  Gate gate = {};
};

/// Products of 65 to 256 rows on Hopper. Ours where they are faster than cuBLASLt's, which do not gate and leave many
/// multiprocessors without work at some numbers of rows. Runs of one object follow each other: they share memory for
/// sums. A row's result has the same bits in every run with as many rows.
class BatchRows {
 public:
  /// Null where the current device or this build has no such kernel.
  static Result<std::unique_ptr<BatchRows>> create();

  /// `weight` stays where it is, in device memory.
  Result<BatchRowsWeight> describe(const void* weight, int64_t out_features, int64_t in_features) const;
  /// With all products cut so.
  static Result<BatchRowsWeight> describe(const void* weight, int64_t out_features, int64_t in_features,
                                          BatchRowsCut cut);
  Status multiply(const BatchRowsArgs& args, void* stream) const;

 private:
  BatchRows() = default;

  int32_t num_multiprocessors_ = 0;
  DeviceBuffer sums_, counts_;
};

}  // namespace kvant::ops::cuda
