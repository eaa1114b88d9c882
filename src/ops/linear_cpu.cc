#include "ops/linear_cpu.h"

#include "ops/activation.h"

namespace kvant::ops {

Status CpuLinear::run(const LinearArgs& args, Stream stream) {
  const auto* x = static_cast<const float*>(args.x);
  auto* y = static_cast<float*>(args.y);
  switch (args.output) {
    case LinearOutput::kActivations:
    case LinearOutput::kF32: multiply(x, args.num_rows, y, stream); return {};
    case LinearOutput::kAddF32: {
      auto* product = static_cast<float*>(args.scratch);
      KVANT_CHECK(product != nullptr);
      multiply(x, args.num_rows, product, stream);
      add(y, product, args.num_rows * out_features(), y);
      return {};
    }
  }
  return {StatusCode::kInternal, "output of a linear layer out of range"};
}

}  // namespace kvant::ops
