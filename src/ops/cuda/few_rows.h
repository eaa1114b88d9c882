#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device_memory.h"
#include "kvant/core/status.h"
#include "ops/linear.h"

namespace kvant::ops::cuda {

/// A bf16 weight [out_features, in_features] as the copy engine knows it.
struct FewRowsWeight {
  std::array<std::byte, 128> map{};
  int64_t out_features = 0;
  int64_t in_features = 0;
};

struct FewRowsArgs {
  const FewRowsWeight* weight = nullptr;
  const void* x = nullptr;  ///< [num_rows, in_features] bf16
  void* y = nullptr;        ///< [num_rows, out_features], as `output` says
  int64_t num_rows = 0;     ///< 1 to FewRows::kMostRows
  LinearOutput output = LinearOutput::kActivations;
};

/// Products of 2 to 32 rows on Hopper, whose time is that of reading the weight. Ours, because cuBLASLt's kernels ask
/// for nothing before the kernel ahead of them has ended, and take 5 to 10 % longer. Runs of one object follow each
/// other: they share memory for sums. A row's result has the same bits in every run with as many rows.
class FewRows {
 public:
  static constexpr int64_t kMostRows = 32;

  /// Null where the current device or this build has no such kernel.
  static Result<std::unique_ptr<FewRows>> create(void* stream);

  /// Whether it multiplies with weights of that shape.
  bool takes(int64_t out_features, int64_t in_features) const;
  /// `weight` stays where it is, in device memory.
  Result<FewRowsWeight> describe(const void* weight, int64_t out_features, int64_t in_features) const;
  Status multiply(const FewRowsArgs& args, void* stream) const;

 private:
  FewRows() = default;

  int32_t num_multiprocessors_ = 0;
  DeviceBuffer sums_;
};

}  // namespace kvant::ops::cuda
