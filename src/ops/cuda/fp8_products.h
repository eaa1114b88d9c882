#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/device_memory.h"
#include "kvant/core/status.h"
#include "ops/cuda/lt_product.h"
#include "ops/linear.h"

namespace kvant::ops::cuda {

/// A weight of e4m3 codes in device memory.
struct Fp8DeviceWeight {
  int64_t out_features = 0;
  int64_t in_features = 0;
  DeviceBuffer codes;         ///< [out_features, in_features]
  DeviceBuffer scales;        ///< [in_features / kFp8Group, out_features]
  DeviceBuffer block_scales;  ///< [out_features / kFp8Group, in_features / kFp8Group rounded up to 4]; empty where rows
                              ///< of such a block differ.
};

/// Products of e4m3 weights and of rows that are rounded to e4m3 on the way, and what they share: plans and the rows'
/// codes.
class Fp8Products {
 public:
  explicit Fp8Products(std::shared_ptr<const LtDevice> device) : products_(std::move(device)) {}

  /// Makes room for rows of a width.
  Status reserve(int64_t max_rows, int64_t in_features);
  /// As Linear::run. Of the padded rows those beyond num_rows become zero, or with kAddF32 stay as they are. Nothing is
  /// allocated for a number of rows that the shape has had.
  Status multiply(const Fp8DeviceWeight& weight, const LinearArgs& args, void* stream);

 private:
  LtProducts products_;
  DeviceBuffer codes_;   ///< Of x.
  DeviceBuffer scales_;  ///< Of x.
};

}  // namespace kvant::ops::cuda
