#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "core/float_bits.h"
#include "kvant/core/thread_pool.h"
#include "ops/cuda/few_rows.h"
#include "ops/decoder_ops.h"
#include "ops/linear.h"
#include "support/cuda_stream_test.h"
#include "support/spoiled_rows.h"
#include "support/tolerance.h"
#include "unit/ops/test_inputs.h"

namespace kvant::ops {
namespace {

using test::bits;
using test::random_values;
using test::rounded;

constexpr LinearOutput kOutputs[] = {LinearOutput::kActivations, LinearOutput::kF32, LinearOutput::kAddF32};
constexpr size_t kGuard = 64;  // values beyond an output

/// Products of 2 to 64 rows, most of which on Hopper are the kernel of ops/cuda/few_rows.h.
class CudaFewRows : public kvant::testing::CudaStreamTest {
 protected:
  void SetUp() override {
    CudaStreamTest::SetUp();
    if (IsSkipped()) return;
    auto context = LinearContext::create(stream(), pool_);
    ASSERT_TRUE(context) << context.error().to_string();
    context_ = *std::move(context);
  }

  std::unique_ptr<Linear> linear(int out, int in, const std::vector<float>& weight) {
    auto made = Linear::create(
        LinearFormat::kBf16, out, in,
        [&](int64_t begin, int64_t end, float* to) {
          std::copy(weight.begin() + begin * in, weight.begin() + end * in, to);
        },
        64, stream(), context_.get());
    EXPECT_TRUE(made) << made.error().to_string();
    return *std::move(made);
  }

  ThreadPool pool_{2};
  std::unique_ptr<LinearContext> context_;
};

TEST_F(CudaFewRows, MultiplyLikeADoublePrecisionProduct) {
  struct Size {
    int out, in;
  };
  // One tile and many; blocks that begin, end and lie within tiles; edges within tiles and chunks.
  for (const Size& size : {Size{64, 64}, Size{8, 8}, Size{72, 584}, Size{1000, 1096}, Size{2304, 576}, Size{136, 12296},
                           Size{4096, 4096}, Size{8520, 512}, Size{4040, 1096}}) {
    const int out = size.out, in = size.in;
    const std::vector<float> weight = rounded(random_values(out * in, 1));
    const auto product = linear(out, in, weight);
    ASSERT_NE(product, nullptr);
    for (const int rows : {2, 3, 8, 9, 16, 17, 31, 32, 33, 40, 63, 64}) {
      std::vector<float> x = rounded(random_values(rows * in, 2));
      const std::vector<float> before = random_values(rows * out, 3);
      std::vector<float> sent = x;
      sent.resize(x.size() + static_cast<size_t>(in) * 8, std::numeric_limits<float>::quiet_NaN());
      const DeviceBuffer device_x = send(bits(sent));
      for (const LinearOutput output : kOutputs) {
        const bool narrow = output == LinearOutput::kActivations;
        std::vector<float> y = before;
        y.resize(before.size() + kGuard, 7.0f);
        const DeviceBuffer device_y = narrow ? send(bits(y)) : send(y);
        const Status status =
            product->run({.x = device_x.data(), .num_rows = rows, .y = device_y.data(), .output = output}, stream());
        ASSERT_TRUE(status.ok()) << status.to_string();
        std::vector<float> got;
        if (narrow) {
          for (const uint16_t value : read<uint16_t>(device_y)) got.push_back(bf16_to_float(value));
        } else {
          got = read<float>(device_y);
        }
        for (size_t i = before.size(); i < got.size(); ++i) ASSERT_EQ(got[i], 7.0f) << "beyond the output";
        // A prime step: outputs of every place in a tile come up.
        const int step = out * in > 100000 ? 101 : 1;
        for (int index = 0; index < rows * out; index += step) {
          const int row = index / out, o = index % out;
          double sum = 0, magnitude = 0;
          for (int i = 0; i < in; ++i) {
            const double term = double{x[static_cast<size_t>(row * in + i)]} * weight[static_cast<size_t>(o * in + i)];
            sum += term;
            magnitude += std::abs(term);
          }
          if (output == LinearOutput::kAddF32) sum += before[static_cast<size_t>(index)];
          const auto tolerance = narrow ? kvant::test::bf16_activation_tolerance(magnitude)
                                        : kvant::test::f32_activation_tolerance(magnitude);
          ASSERT_LE(std::abs(got[static_cast<size_t>(index)] - sum),
                    tolerance.absolute + tolerance.relative * std::abs(sum))
              << out << " x " << in << ", " << rows << " rows, row " << row << ", output " << o;
        }
      }
    }
  }
}

TEST_F(CudaFewRows, KeepsNanAndInfinityToTheirRows) {
  constexpr int kOut = 4040, kIn = 1096;
  const auto product = linear(kOut, kIn, rounded(random_values(kOut * kIn, 1)));
  for (const int rows : {9, 40}) {
    std::vector<float> x = rounded(random_values(rows * kIn, 2));
    const DeviceBuffer y = send(std::vector<float>(static_cast<size_t>(rows * kOut), 0.0f));
    const auto run = [&] {
      const DeviceBuffer device_x = send(bits(x));
      EXPECT_TRUE(
          product->run({.x = device_x.data(), .num_rows = rows, .y = y.data(), .output = LinearOutput::kF32}, stream())
              .ok());
      return read<float>(y);
    };
    const std::vector<float> clean = run();
    x[3 * kIn + 700] = std::numeric_limits<float>::quiet_NaN();
    x[5 * kIn + 20] = std::numeric_limits<float>::infinity();
    const std::vector<float> got = run();
    ASSERT_NO_FATAL_FAILURE(kvant::test::expect_spoiled_rows(got, clean, kOut, {3, 5}));
  }
}

TEST_F(CudaFewRows, GatesLikeAKernelOfItsOwn) {
  constexpr int kOut = 6016, kIn = 2048, kMostRows = 64;
  const auto product = linear(kOut, kIn, rounded(random_values(kOut * kIn, 1)));
  if (!product->gates(kMostRows)) GTEST_SKIP() << "this device's products do not gate";
  EXPECT_FALSE(product->gates(1));
  EXPECT_FALSE(product->gates(kMostRows + 1));
  std::vector<float> values = random_values(kMostRows * kIn, 2);
  for (float& value : values) value *= 0.03f;  // Sums of size 1.4.
  const DeviceBuffer x = send(bits(values));
  constexpr int kSize = kOut / 2;
  constexpr auto kCount = static_cast<size_t>(kMostRows * kSize);
  for (const int rows : {2, 9, 31, 33, kMostRows}) {
    for (const GateKind kind : {GateKind::kSilu, GateKind::kGeluTanh, GateKind::kClampedSwish}) {
      const Gate gate{.kind = kind, .limit = 3.0f};
      const std::vector<uint16_t> untouched(kCount, 0x7fff);
      const DeviceBuffer device_both = send(std::vector<uint16_t>(2 * kCount)), device_want = send(untouched),
                         device_got = send(untouched);
      ASSERT_TRUE(product->run({.x = x.data(), .num_rows = rows, .y = device_both.data()}, stream()).ok());
      ASSERT_TRUE(
          apply_gate(
              {.gate = gate, .gate_up = device_both.data(), .num_rows = rows, .size = kSize, .out = device_want.data()},
              stream())
              .ok());
      ASSERT_TRUE(product
                      ->run({.x = x.data(),
                             .num_rows = rows,
                             .y = device_got.data(),
                             .output = LinearOutput::kGated,
                             .gate = gate},
                            stream())
                      .ok());
      const std::vector<uint16_t> both = read<uint16_t>(device_both), want = read<uint16_t>(device_want),
                                  got = read<uint16_t>(device_got);
      for (size_t i = 0; i < static_cast<size_t>(rows * kSize); ++i) {
        // Sums of another order may round either half otherwise.
        const size_t at = i + i / kSize * kSize;
        const double size = (1 + std::abs(bf16_to_float(both[at]))) * (1 + std::abs(bf16_to_float(both[at + kSize])));
        const auto tolerance = kvant::test::bf16_activation_tolerance(size);
        ASSERT_LE(std::abs(bf16_to_float(got[i]) - bf16_to_float(want[i])),
                  tolerance.absolute + tolerance.relative * 2 * size)
            << rows << " rows, gate " << static_cast<int>(kind) << ", element " << i;
      }
      for (size_t i = static_cast<size_t>(rows * kSize); i < kCount; ++i)
        ASSERT_EQ(got[i], 0x7fff) << "beyond the output";
    }
  }
}

TEST_F(CudaFewRows, EveryCutOfManyRowsGivesTheProduct) {
  const auto few = cuda::FewRows::create(stream().cuda);
  ASSERT_TRUE(few) << few.error().to_string();
  if (*few == nullptr) GTEST_SKIP() << "products of few rows are not this device's";
  // Of 10 chunks, the last one narrow; the last tile is narrow with any number of warpgroups.
  constexpr int kOut = 1008, kIn = 584;
  const std::vector<float> weight = rounded(random_values(kOut * kIn, 1)), x = rounded(random_values(64 * kIn, 2));
  std::vector<double> want(size_t{64} * kOut), magnitude(want.size());
  for (size_t index = 0; index < want.size(); ++index) {
    for (int i = 0; i < kIn; ++i) {
      const double term =
          double{x[index / kOut * kIn + static_cast<size_t>(i)]} * weight[index % kOut * kIn + static_cast<size_t>(i)];
      want[index] += term;
      magnitude[index] += std::abs(term);
    }
  }
  const DeviceBuffer device_weight = send(bits(weight)), device_x = send(bits(x));
  for (const int rows : {33, 40, 64}) {
    for (const int outputs : {8, 56, 64, 72, 136, 192, 248}) {
      for (const int split : {1, 2, 3, 4, 7, 8}) {
        SCOPED_TRACE(::testing::Message() << rows << " rows, tiles of " << outputs << ", split by " << split);
        const auto described =
            cuda::FewRows::describe(device_weight.data(), kOut, kIn, {.outputs = outputs, .split = split});
        ASSERT_TRUE(described) << described.error().to_string();
        const auto count = static_cast<size_t>(rows * kOut);
        const DeviceBuffer y = send(std::vector<float>(count + kGuard, 7.0f));
        const auto run = [&](LinearOutput output, const DeviceBuffer& to) {
          const Status status = (*few)->multiply(
              {.weight = &*described, .x = device_x.data(), .y = to.data(), .num_rows = rows, .output = output},
              stream().cuda);
          ASSERT_TRUE(status.ok()) << status.to_string();
        };
        run(LinearOutput::kF32, y);
        const std::vector<float> got = read<float>(y);
        run(LinearOutput::kAddF32, y);
        const std::vector<float> twice = read<float>(y);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_LE(std::abs(got[i] - want[i]),
                    kvant::test::f32_activation_tolerance(magnitude[i]).absolute +
                        kvant::test::f32_activation_tolerance(magnitude[i]).relative * std::abs(want[i]))
              << "row " << i / kOut << ", output " << i % kOut;
          ASSERT_EQ(twice[i], 2 * got[i]) << "row " << i / kOut << ", output " << i % kOut;
        }
        for (size_t i = count; i < got.size(); ++i) ASSERT_EQ(twice[i], 7.0f) << "beyond the output";
        // Each output's inputs are cut alike with gates and without, so the bits are those of a kernel of its own.
        if (outputs % 16 != 0) continue;
        const DeviceBuffer both = send(std::vector<uint16_t>(count)), gated = send(std::vector<uint16_t>(count / 2));
        const DeviceBuffer want_gated = send(std::vector<uint16_t>(count / 2));
        run(LinearOutput::kActivations, both);
        run(LinearOutput::kGated, gated);
        ASSERT_TRUE(
            apply_gate(
                {.gate = {}, .gate_up = both.data(), .num_rows = rows, .size = kOut / 2, .out = want_gated.data()},
                stream())
                .ok());
        ASSERT_EQ(read<uint16_t>(gated), read<uint16_t>(want_gated));
      }
    }
  }
}

TEST_F(CudaFewRows, GivesTheSameBitsInEveryRunAndReplay) {
  // Of one context, in turns: each finds the memory for sums as the one before left it.
  struct Step {
    int out, in, rows;
  };
  constexpr Step kSteps[] = {{1536, 1024, 32}, {1024, 1024, 16}, {6144, 1024, 8}, {1024, 3072, 5},
                             {1024, 1032, 31}, {6016, 2048, 64}, {4040, 1096, 33}};
  std::vector<std::unique_ptr<Linear>> products;
  std::vector<DeviceBuffer> xs, ys;
  for (const Step& step : kSteps) {
    products.push_back(linear(step.out, step.in, rounded(random_values(step.out * step.in, 4))));
    xs.push_back(send(bits(random_values(step.rows * step.in, 5))));
    ys.push_back(send(std::vector<float>(static_cast<size_t>(step.rows * step.out), -1.0f)));
  }
  const auto run = [&] {
    for (size_t i = 0; i < products.size(); ++i) {
      const Status status = products[i]->run(
          {.x = xs[i].data(), .num_rows = kSteps[i].rows, .y = ys[i].data(), .output = LinearOutput::kF32}, stream());
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  };
  run();
  expect_replays_alike(run, ys, {.rounds = 200});
}

}  // namespace
}  // namespace kvant::ops
