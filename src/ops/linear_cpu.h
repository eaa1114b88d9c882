#pragma once

#include "ops/linear.h"

namespace kvant::ops {

/// A linear layer on the CPU: fp32 in, fp32 out.
class CpuLinear : public Linear {
 public:
  Status run(const LinearArgs& args, Stream stream) final;

 protected:
  virtual void multiply(const float* x, int64_t num_rows, float* y, Stream stream) = 0;
};

}  // namespace kvant::ops
