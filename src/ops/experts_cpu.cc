#include "ops/experts_cpu.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "ops/row_loop.h"

namespace kvant::ops {
namespace {

struct CpuExpertsWorkspace final : ExpertsWorkspace {
  // [max_rows, ...]
  std::vector<float> logits;     // num_experts
  std::vector<int32_t> experts;  // num_used
  std::vector<float> weights;    // num_used
  std::vector<int32_t> pairs;    // num_used
  std::vector<int32_t> offsets;  // [num_experts + 1]
  // Of one expert's rows.
  std::vector<float> x;          // hidden
  std::vector<float> gate_up;    // 2 * size
  std::vector<float> activated;  // size
  std::vector<float> y;          // hidden
};

/// A piece of stacked rows.
WeightRows rows_from(const WeightRows& rows, int64_t first) {
  return [&rows, first](int64_t begin, int64_t end, float* out) { rows(first + begin, first + end, out); };
}

class CpuExperts final : public Experts {
 public:
  explicit CpuExperts(const ExpertsShape& shape) : shape_(shape) {}

  Status load(ExpertsWeights weights, LinearFormat format, int64_t max_rows, Stream stream) {
    const auto add = [&](LinearFormat as, int64_t out, int64_t in,
                         const WeightRows& rows) -> Result<std::unique_ptr<Linear>> {
      auto linear = Linear::create(as, out, in, rows, max_rows, stream);
      if (linear) weight_bytes_ += (*linear)->weight_bytes();
      return linear;
    };
    // The choice of experts is a step function of the router's output: it is not rounded.
    KVANT_ASSIGN_OR_RETURN(router_, add(LinearFormat::kF32, shape_.routing.num_experts, shape_.hidden, weights.router));
    for (int64_t expert = 0; expert < shape_.routing.num_experts; ++expert) {
      KVANT_ASSIGN_OR_RETURN(auto gate_up, add(format, 2 * shape_.size, shape_.hidden,
                                               rows_from(weights.gate_up, expert * 2 * shape_.size)));
      KVANT_ASSIGN_OR_RETURN(auto down,
                             add(format, shape_.hidden, shape_.size, rows_from(weights.down, expert * shape_.hidden)));
      gate_up_.push_back(std::move(gate_up));
      down_.push_back(std::move(down));
    }
    router_bias_ = std::move(weights.router_bias);
    gate_up_bias_ = std::move(weights.gate_up_bias);
    down_bias_ = std::move(weights.down_bias);
    return {};
  }

  Result<std::unique_ptr<ExpertsWorkspace>> create_workspace(int64_t max_rows, Stream) const override {
    auto out = std::make_unique<CpuExpertsWorkspace>();
    const auto rows = static_cast<size_t>(max_rows), hidden = static_cast<size_t>(shape_.hidden),
               size = static_cast<size_t>(shape_.size);
    const auto used = static_cast<size_t>(shape_.routing.num_used);
    out->logits.resize(rows * static_cast<size_t>(shape_.routing.num_experts));
    out->experts.resize(rows * used);
    out->weights.resize(rows * used);
    out->pairs.resize(rows * used);
    out->offsets.resize(static_cast<size_t>(shape_.routing.num_experts) + 1);
    out->x.resize(rows * hidden);
    out->gate_up.resize(rows * 2 * size);
    out->activated.resize(rows * size);
    out->y.resize(rows * hidden);
    return out;
  }

  Status run(const void* x, int64_t num_rows, float* y, ExpertsWorkspace& workspace, Stream stream) override {
    auto& work = static_cast<CpuExpertsWorkspace&>(workspace);
    const auto* rows = static_cast<const float*>(x);
    KVANT_RETURN_IF_ERROR(route(rows, num_rows, work, stream));
    for (int32_t expert = 0; expert < shape_.routing.num_experts; ++expert) {
      const int32_t first = work.offsets[static_cast<size_t>(expert)];
      const int64_t count = work.offsets[static_cast<size_t>(expert) + 1] - first;
      if (count > 0)
        KVANT_RETURN_IF_ERROR(
            run_expert(expert, rows, {work.pairs.data() + first, static_cast<size_t>(count)}, y, work, stream));
    }
    return {};
  }

  int64_t weight_bytes() const override { return weight_bytes_; }

 private:
  Status route(const float* x, int64_t num_rows, CpuExpertsWorkspace& work, Stream stream) const {
    const RoutingShape& routing = shape_.routing;
    KVANT_RETURN_IF_ERROR(router_->run({.x = x, .num_rows = num_rows, .y = work.logits.data()}, stream));
    const auto num_experts = static_cast<int64_t>(routing.num_experts), num_used = int64_t{routing.num_used};
    for_row_blocks(num_rows, num_experts * (num_used + kCostOfExp), stream, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* logits = work.logits.data() + row * num_experts;
        if (!router_bias_.empty()) add(logits, router_bias_.data(), num_experts, logits);
        route_token(routing, logits, work.experts.data() + row * num_used, work.weights.data() + row * num_used);
      }
    });
    sort_by_expert(routing, work.experts.data(), num_rows, work.offsets.data(), work.pairs.data());
    return {};
  }

  Status run_expert(int32_t expert, const float* x, std::span<const int32_t> pairs, float* y, CpuExpertsWorkspace& work,
                    Stream stream) const {
    const int64_t count = std::ssize(pairs), hidden = shape_.hidden, size = shape_.size;
    const auto row_of = [&](int64_t i) { return pairs[static_cast<size_t>(i)] / shape_.routing.num_used; };
    for_row_blocks(count, hidden, stream, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) std::copy_n(x + row_of(i) * hidden, hidden, work.x.data() + i * hidden);
    });
    const auto at = static_cast<size_t>(expert);
    KVANT_RETURN_IF_ERROR(gate_up_[at]->run({.x = work.x.data(), .num_rows = count, .y = work.gate_up.data()}, stream));
    if (!gate_up_bias_.empty()) {
      const float* bias = gate_up_bias_.data() + expert * 2 * size;
      for_row_blocks(count, 2 * size, stream, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float* row = work.gate_up.data() + i * 2 * size;
          add(row, bias, 2 * size, row);
        }
      });
    }
    gate_rows(shape_.gate, work.gate_up.data(), count, size, work.activated.data(), stream);
    KVANT_RETURN_IF_ERROR(down_[at]->run({.x = work.activated.data(), .num_rows = count, .y = work.y.data()}, stream));
    const float* bias = down_bias_.empty() ? nullptr : down_bias_.data() + expert * hidden;
    for_row_blocks(count, 2 * hidden, stream, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float weight = work.weights[static_cast<size_t>(pairs[static_cast<size_t>(i)])];
        float* from = work.y.data() + i * hidden;
        float* to = y + row_of(i) * hidden;
        if (bias != nullptr) add(from, bias, hidden, from);
        for (int64_t channel = 0; channel < hidden; ++channel) to[channel] += weight * from[channel];
      }
    });
    return {};
  }

  ExpertsShape shape_;
  std::unique_ptr<Linear> router_;
  std::vector<std::unique_ptr<Linear>> gate_up_;
  std::vector<std::unique_ptr<Linear>> down_;
  std::vector<float> router_bias_, gate_up_bias_, down_bias_;
  int64_t weight_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Experts>> create_cpu_experts(const ExpertsShape& shape, ExpertsWeights weights,
                                                    LinearFormat format, int64_t max_rows, Stream stream) {
  auto experts = std::make_unique<CpuExperts>(shape);
  KVANT_FAIL_IF_ERROR(experts->load(std::move(weights), format, max_rows, stream));
  return experts;
}

}  // namespace kvant::ops
