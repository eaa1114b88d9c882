#include "ops/experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "core/float_bits.h"
#include "kvant/core/thread_pool.h"
#include "support/cuda_stream_test.h"
#include "support/tolerance.h"
#include "unit/ops/test_inputs.h"

namespace kvant::ops {
namespace {

using test::random_values;

std::vector<float> rounded(std::vector<float> values, float scale) {
  for (float& value : values) value = bf16_to_float(float_to_bf16(value * scale));
  return values;
}

WeightRows rows_of(const std::vector<float>& values, int64_t columns) {
  return [&values, columns](int64_t begin, int64_t end, float* out) {
    std::copy(values.begin() + begin * columns, values.begin() + end * columns, out);
  };
}

class CudaExperts : public kvant::testing::CudaStreamTest {
 protected:
  ThreadPool pool_{2};
  Stream cpu_ = Stream::on_cpu(pool_);

  /// Experts on both devices over the same rows, with biases or without.
  void check(const ExpertsShape& shape, bool biases) {
    const int64_t count = shape.routing.num_experts, hidden = shape.hidden, size = shape.size;
    const auto inverse_root = [](int64_t n) { return 1.0f / std::sqrt(static_cast<float>(n)); };
    const auto router = rounded(random_values(count * hidden, 1), inverse_root(hidden));
    const auto gate_up = rounded(random_values(count * 2 * size * hidden, 2), inverse_root(hidden));
    const auto down = rounded(random_values(count * hidden * size, 3), inverse_root(size));
    const auto bias = [&](int64_t n, uint32_t seed) { return biases ? random_values(n, seed) : std::vector<float>(); };
    const auto make = [&](LinearFormat format, Stream stream, LinearContext* context) {
      return Experts::create(shape,
                             {.router = rows_of(router, hidden),
                              .gate_up = rows_of(gate_up, hidden),
                              .down = rows_of(down, size),
                              .router_bias = bias(count, 4),
                              .gate_up_bias = bias(count * 2 * size, 5),
                              .down_bias = bias(count * hidden, 6)},
                             format, 256, stream, context);
    };
    auto context = LinearContext::create(stream(), pool_);
    ASSERT_TRUE(context) << context.error().to_string();
    const auto host = make(LinearFormat::kF32, cpu_, nullptr).value();
    const auto device = make(LinearFormat::kBf16, stream(), context->get());
    ASSERT_TRUE(device) << device.error().to_string();
    const auto host_workspace = host->create_workspace(256, cpu_).value();
    const auto device_workspace = (*device)->create_workspace(256, stream()).value();
    for (const int64_t rows : {1, 5, 130}) {
      const std::vector<float> x = rounded(random_values(rows * hidden, 7), 1.0f);
      std::vector<uint16_t> bits;
      for (const float value : x) bits.push_back(float_to_bf16(value));
      std::vector<float> want = random_values(rows * hidden, 8);
      const DeviceBuffer in = send(bits), out = send(want);
      ASSERT_TRUE(host->run(x.data(), rows, want.data(), *host_workspace, cpu_).ok());
      const Status status = (*device)->run(in.data(), rows, out.as<float>(), *device_workspace, stream());
      ASSERT_TRUE(status.ok()) << status.to_string();
      const std::vector<float> got = read<float>(out);
      double difference = 0, total = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        total += want[i] * want[i];
      }
      EXPECT_LE(std::sqrt(difference / total), kvant::test::cuda_expert_error()) << rows << " rows";
    }
  }
};

TEST_F(CudaExperts, AddLikeTheCpu) {
  check({.routing = {.num_experts = 8, .num_used = 2, .normalise = true}, .hidden = 128, .size = 96, .gate = {}},
        false);
  check({.routing = {.num_experts = 32, .num_used = 4, .normalise = true},
         .hidden = 200,
         .size = 72,
         .gate = {.kind = GateKind::kClampedSwish, .limit = 7.0f}},
        true);
  check({.routing = {.num_experts = 60, .num_used = 6, .normalise = false}, .hidden = 64, .size = 64, .gate = {}},
        false);
}

}  // namespace
}  // namespace kvant::ops
