#include "ops/experts.h"

#include <utility>

#include <fmt/format.h>

#include "ops/cuda/experts_cuda.h"
#include "ops/experts_cpu.h"

namespace kvant::ops {

Result<std::unique_ptr<Experts>> Experts::create(const ExpertsShape& shape, ExpertsWeights weights, LinearFormat format,
                                                 int64_t max_rows, Stream stream, LinearContext* context) {
  const RoutingShape& routing = shape.routing;
  if (routing.num_used < 1 || routing.num_used > routing.num_experts) {
    return failure(StatusCode::kInvalidArgument, fmt::format("{} of {} experts per token; 1 to all of them are needed",
                                                             routing.num_used, routing.num_experts));
  }
  if (stream.cuda != nullptr) return cuda::create_experts(shape, weights, max_rows, stream, context);
  return create_cpu_experts(shape, std::move(weights), format, max_rows, stream);
}

}  // namespace kvant::ops
