#pragma once

#include <cstdint>

#include "kvant/core/status.h"
#include "ops/linear.h"

namespace kvant::ops::cuda {

/// Products of at most this many rows, whose time is that of reading the weight, are ours: cuBLASLt leaves a fifth of
/// the bandwidth at one row.
inline constexpr int64_t kMostFewRows = 4;

struct FewRowsArgs {
  const void* weight = nullptr;  ///< [out_features, in_features] bf16
  const void* x = nullptr;       ///< [num_rows, in_features] bf16
  void* y = nullptr;             ///< [num_rows, out_features], as `output` says
  int64_t out_features = 0;
  int64_t in_features = 0;  ///< A multiple of 8.
  int64_t num_rows = 0;     ///< 1 to kMostFewRows.
  LinearOutput output = LinearOutput::kActivations;
};
Status multiply_few_rows(const FewRowsArgs& args, void* stream);

}  // namespace kvant::ops::cuda
