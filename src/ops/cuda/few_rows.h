#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "core/device_memory.h"
#include "kvant/core/status.h"
#include "ops/cuda/tensor_map.h"
#include "ops/linear.h"

namespace kvant::ops::cuda {

/// Most rows of products whose blocks take equal shares of tiles of 64 outputs, and of those that are cut as FewRowsCut
/// says.
inline constexpr int kMostFewRows = 32, kMostManyRows = 64;

/// How products of more than kMostFewRows rows are cut.
struct FewRowsCut {
  int32_t outputs = 0;  ///< Of a tile, a multiple of 8; 0 = they are not taken.
  int32_t split = 1;    ///< Blocks of a cluster that share the inputs of a tile.
};

/// A bf16 weight [out_features, in_features] as the copy engine knows it, once with eight gate channels beside their
/// eight up channels.
struct FewRowsForm {
  FewRowsCut cut;
  TensorMap map{}, gated_map{};
};

struct FewRowsWeight {
  int64_t out_features = 0;
  int64_t in_features = 0;
  FewRowsForm few, many;  ///< Of up to kMostFewRows, and of up to kMostManyRows.

  const FewRowsForm& form(int64_t num_rows) const { return num_rows <= kMostFewRows ? few : many; }
  bool takes(int64_t num_rows) const { return num_rows <= kMostManyRows && form(num_rows).cut.outputs > 0; }
  bool gates(int64_t num_rows) const {
    return takes(num_rows) && out_features % 16 == 0 && form(num_rows).cut.outputs % 16 == 0;
  }
};

struct FewRowsArgs {
  const FewRowsWeight* weight = nullptr;
  const void* x = nullptr;  ///< [num_rows, in_features] bf16
  void* y = nullptr;        ///< [num_rows, out_features], as `output` says
  int64_t num_rows = 0;     ///< What the weight takes.
  LinearOutput output = LinearOutput::kActivations;
  Gate gate = {};
};

/// Products of 2 to 64 rows on Hopper, whose time is that of reading the weight. Ours, because cuBLASLt's kernels ask
/// for nothing before the kernel ahead of them has ended, and with up to 32 rows take 5 to 10 % longer. Runs of one
/// object follow each other: they share memory for sums. A row's result has the same bits in every run with as many
/// rows.
class FewRows {
 public:
  /// Null where the current device or this build has no such kernel.
  static Result<std::unique_ptr<FewRows>> create(void* stream);

  /// `weight` stays where it is, in device memory. It takes no rows if its shape is not suited.
  Result<FewRowsWeight> describe(const void* weight, int64_t out_features, int64_t in_features) const;
  /// With products of more than kMostFewRows rows cut so.
  static Result<FewRowsWeight> describe(const void* weight, int64_t out_features, int64_t in_features, FewRowsCut cut);
  Status multiply(const FewRowsArgs& args, void* stream) const;

 private:
  FewRows() = default;
  FewRowsCut choose_cut(int64_t out_features, int64_t in_features) const;

  int32_t num_multiprocessors_ = 0;
  std::array<int32_t, 9> most_clusters_{};  ///< That run at once, by blocks of each.
  DeviceBuffer sums_;
};

}  // namespace kvant::ops::cuda
