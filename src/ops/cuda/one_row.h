#pragma once

#include <cstdint>

#include "kvant/core/status.h"
#include "ops/linear.h"

namespace kvant::ops::cuda {

/// The product of one row, whose time is that of reading the weight. Ours, because cuBLASLt takes up to a sixth longer.
struct OneRowArgs {
  const void* weight = nullptr;  ///< [out_features, in_features] bf16
  const void* x = nullptr;       ///< [in_features] bf16
  void* y = nullptr;             ///< [out_features], as `output` says
  int64_t out_features = 0;
  int64_t in_features = 0;  ///< A multiple of 8.
  LinearOutput output = LinearOutput::kActivations;
};
Status multiply_one_row(const OneRowArgs& args, void* stream);

/// The same of e4m3 codes.
struct OneFp8RowArgs {
  const void* weight = nullptr;     ///< [out_features, in_features]
  const float* scales = nullptr;    ///< [in_features / kFp8Group, out_features]
  const void* x = nullptr;          ///< [in_features]
  const float* x_scales = nullptr;  ///< [in_features / kFp8Group]
  void* y = nullptr;                ///< [out_features], as `output` says
  int64_t out_features = 0;         ///< A multiple of 4.
  int64_t in_features = 0;          ///< A multiple of kFp8Group.
  LinearOutput output = LinearOutput::kActivations;
};
Status multiply_one_fp8_row(const OneFp8RowArgs& args, void* stream);

}  // namespace kvant::ops::cuda
