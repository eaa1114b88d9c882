#include "ops/linear_cpu.h"

#include "ops/activation.h"
#include "ops/row_loop.h"

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
      const int64_t width = out_features();
      for_row_blocks(args.num_rows, width, stream, [&](int64_t begin, int64_t end) {
        add(y + begin * width, product + begin * width, (end - begin) * width, y + begin * width);
      });
      return {};
    }
    case LinearOutput::kGated: break;
  }
  return {StatusCode::kInternal, "output of a linear layer out of range"};
}

}  // namespace kvant::ops
