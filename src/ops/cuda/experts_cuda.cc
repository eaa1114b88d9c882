#include "ops/cuda/experts_cuda.h"

#include <string>
#include <utility>

#include "core/device_memory.h"
#include "ops/cuda/expert_kernels.h"
#include "ops/decoder_ops.h"

namespace kvant::ops::cuda {
namespace {

struct CudaExpertsWorkspace final : ExpertsWorkspace {
  // [max_rows, ...]
  DeviceBuffer logits;     // num_experts fp32
  DeviceBuffer experts;    // num_used
  DeviceBuffer weights;    // num_used fp32
  DeviceBuffer pairs;      // num_used
  DeviceBuffer tiles;      // of any choice of experts
  DeviceBuffer gate_up;    // num_used * 2 * size bf16
  DeviceBuffer activated;  // num_used * size bf16
  DeviceBuffer outputs;    // num_used * hidden fp32
};

class CudaExperts final : public Experts {
 public:
  explicit CudaExperts(const ExpertsShape& shape) : shape_(shape) {}

  Status load(const ExpertsWeights& weights, int64_t max_rows, Stream stream, LinearContext* context) {
    const int64_t count = shape_.routing.num_experts;
    // Rows of all experts are one matrix in memory; only the router is multiplied as one.
    const auto matrix = [&](int64_t outputs, int64_t inputs, const WeightRows& rows) {
      return Linear::create(LinearFormat::kBf16, outputs, inputs, rows, max_rows, stream, context);
    };
    KVANT_ASSIGN_OR_RETURN(router_, matrix(count, shape_.hidden, weights.router));
    KVANT_ASSIGN_OR_RETURN(gate_up_, matrix(count * 2 * shape_.size, shape_.hidden, weights.gate_up));
    KVANT_ASSIGN_OR_RETURN(down_, matrix(count * shape_.hidden, shape_.size, weights.down));
    KVANT_ASSIGN_OR_RETURN(router_bias_, upload(weights.router_bias, "biases of experts", stream));
    KVANT_ASSIGN_OR_RETURN(gate_up_bias_, upload(weights.gate_up_bias, "biases of experts", stream));
    KVANT_ASSIGN_OR_RETURN(down_bias_, upload(weights.down_bias, "biases of experts", stream));
    return {};
  }

  Result<std::unique_ptr<ExpertsWorkspace>> create_workspace(int64_t max_rows, Stream) const override {
    auto out = std::make_unique<CudaExpertsWorkspace>();
    const auto make = [](DeviceBuffer& buffer, int64_t bytes) -> Status {
      KVANT_ASSIGN_OR_RETURN(buffer, DeviceBuffer::create(MemoryKind::kCuda, bytes, "activations of experts"));
      return {};
    };
    constexpr int64_t kFloat = sizeof(float), kIndex = sizeof(int32_t), kHalf = sizeof(uint16_t);
    const int64_t pairs = max_rows * shape_.routing.num_used;
    KVANT_FAIL_IF_ERROR(make(out->logits, max_rows * shape_.routing.num_experts * kFloat));
    KVANT_FAIL_IF_ERROR(make(out->experts, pairs * kIndex));
    KVANT_FAIL_IF_ERROR(make(out->weights, pairs * kFloat));
    KVANT_FAIL_IF_ERROR(make(out->pairs, pairs * kIndex));
    KVANT_FAIL_IF_ERROR(make(out->tiles, most_expert_tiles(shape_.routing, max_rows) * expert_tile_bytes()));
    KVANT_FAIL_IF_ERROR(make(out->gate_up, pairs * 2 * shape_.size * kHalf));
    KVANT_FAIL_IF_ERROR(make(out->activated, pairs * shape_.size * kHalf));
    KVANT_FAIL_IF_ERROR(make(out->outputs, pairs * shape_.hidden * kFloat));
    return out;
  }

  Status run(const void* x, int64_t num_rows, float* y, ExpertsWorkspace& workspace, Stream stream) override {
    auto& work = static_cast<CudaExpertsWorkspace&>(workspace);
    const RoutingShape& routing = shape_.routing;
    KVANT_RETURN_IF_ERROR(
        router_->run({.x = x, .num_rows = num_rows, .y = work.logits.data(), .output = LinearOutput::kF32}, stream));
    KVANT_RETURN_IF_ERROR(route_experts({.shape = routing,
                                         .num_tokens = num_rows,
                                         .logits = work.logits.as<float>(),
                                         .bias = router_bias_.as<float>(),
                                         .experts = work.experts.as<int32_t>(),
                                         .weights = work.weights.as<float>(),
                                         .pairs = work.pairs.as<int32_t>(),
                                         .tiles = work.tiles.data()},
                                        stream.cuda));
    KVANT_RETURN_IF_ERROR(multiply_experts({.shape = routing,
                                            .num_tokens = num_rows,
                                            .weights = gate_up_->plain_rows(),
                                            .bias = gate_up_bias_.as<float>(),
                                            .x = x,
                                            .y = work.gate_up.data(),
                                            .pairs = work.pairs.as<int32_t>(),
                                            .tiles = work.tiles.data(),
                                            .outputs = 2 * shape_.size,
                                            .inputs = shape_.hidden},
                                           stream.cuda));
    KVANT_RETURN_IF_ERROR(ops::apply_gate({.gate = shape_.gate,
                                           .gate_up = work.gate_up.data(),
                                           .num_rows = num_rows * routing.num_used,
                                           .size = shape_.size,
                                           .out = work.activated.data()},
                                          stream));
    KVANT_RETURN_IF_ERROR(multiply_experts({.shape = routing,
                                            .num_tokens = num_rows,
                                            .weights = down_->plain_rows(),
                                            .bias = down_bias_.as<float>(),
                                            .x = work.activated.data(),
                                            .x_by_pair = true,
                                            .y = work.outputs.data(),
                                            .y_is_f32 = true,
                                            .pairs = work.pairs.as<int32_t>(),
                                            .tiles = work.tiles.data(),
                                            .outputs = shape_.hidden,
                                            .inputs = shape_.size},
                                           stream.cuda));
    return combine_experts(routing, work.outputs.as<float>(), work.weights.as<float>(), num_rows, shape_.hidden, y,
                           stream.cuda);
  }

  int64_t weight_bytes() const override {
    return router_->weight_bytes() + gate_up_->weight_bytes() + down_->weight_bytes();
  }

 private:
  ExpertsShape shape_;
  std::unique_ptr<Linear> router_, gate_up_, down_;
  DeviceBuffer router_bias_, gate_up_bias_, down_bias_;
};

}  // namespace

Result<std::unique_ptr<Experts>> create_experts(const ExpertsShape& shape, const ExpertsWeights& weights,
                                                int64_t max_rows, Stream stream, LinearContext* context) {
  KVANT_FAIL_IF_ERROR(check_expert_counts(shape.routing));
  if (shape.hidden % 8 != 0 || shape.size % 8 != 0)
    return failure(StatusCode::kUnsupported, "experts of " + std::to_string(shape.size) + " channels on rows of " +
                                                 std::to_string(shape.hidden) +
                                                 ": CUDA needs multiples of 8; run the model on the CPU");
  auto experts = std::make_unique<CudaExperts>(shape);
  KVANT_FAIL_IF_ERROR(experts->load(weights, max_rows, stream, context));
  return experts;
}

}  // namespace kvant::ops::cuda
