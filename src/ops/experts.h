#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "ops/activation.h"
#include "ops/expert_routing.h"
#include "ops/linear.h"

namespace kvant::ops {

/// A feed-forward layer of several experts, of which each token uses a few.
struct ExpertsShape {
  RoutingShape routing;
  int64_t hidden = 0;
  int64_t size = 0;  ///< Channels within an expert.
  Gate gate;
};

struct ExpertsWeights {
  WeightRows router;                     ///< [num_experts, hidden]
  WeightRows gate_up;                    ///< [num_experts, 2 * size, hidden], gate rows of an expert first
  WeightRows down;                       ///< [num_experts, hidden, size]
  std::vector<float> router_bias = {};   ///< [num_experts], or empty as the other biases may be
  std::vector<float> gate_up_bias = {};  ///< [num_experts, 2 * size]
  std::vector<float> down_bias = {};     ///< [num_experts, hidden]
};

/// Memory that the expert layers of a model share: one runs at a time.
class ExpertsWorkspace {
 public:
  virtual ~ExpertsWorkspace() = default;
};

/// On the CPU a token's result has the same bits in every batch, in formats whose Linear has that property.
class Experts {
 public:
  static Result<std::unique_ptr<Experts>> create(const ExpertsShape& shape, ExpertsWeights weights, LinearFormat format,
                                                 int64_t max_rows, Stream stream, LinearContext* context);
  virtual ~Experts() = default;

  /// For layers of this shape, or of a smaller one in every size.
  virtual Result<std::unique_ptr<ExpertsWorkspace>> create_workspace(int64_t max_rows, Stream stream) const = 0;

  /// y += the weighted outputs of each row's experts. x [num_rows, hidden] activations, y [num_rows, hidden] fp32.
  /// Allocates nothing after the first calls, as Linear.
  virtual Status run(const void* x, int64_t num_rows, float* y, ExpertsWorkspace& workspace, Stream stream) = 0;

  virtual int64_t weight_bytes() const = 0;
};

}  // namespace kvant::ops
