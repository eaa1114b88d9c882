#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "core/float_bits.h"
#include "kvant/core/thread_pool.h"
#include "ops/cuda/batch_rows.h"
#include "ops/decoder_ops.h"
#include "ops/linear.h"
#include "support/cuda_stream_test.h"
#include "support/spoiled_rows.h"
#include "support/tolerance.h"
#include "unit/ops/test_inputs.h"

namespace kvant::ops {
namespace {

using cuda::BatchRowsCut;
using cuda::BatchRowsWeight;
using test::bits;
using test::random_values;
using test::rounded;

constexpr size_t kGuard = 64;  // values beyond an output
constexpr int kTiles[] = {96, 128, 192};

/// x W^T in double precision, with the sum of its terms' magnitudes.
struct Reference {
  Reference(const std::vector<float>& weight, const std::vector<float>& x, int in) {
    const size_t out = weight.size() / static_cast<size_t>(in), rows = x.size() / static_cast<size_t>(in);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t o = 0; o < out; ++o) {
        double sum = 0, size = 0;
        for (size_t i = 0; i < static_cast<size_t>(in); ++i) {
          const double term = double{x[row * static_cast<size_t>(in) + i]} * weight[o * static_cast<size_t>(in) + i];
          sum += term;
          size += std::abs(term);
        }
        value.push_back(sum);
        magnitude.push_back(size);
      }
    }
  }
  void expect(const std::vector<float>& got, size_t count, const std::vector<float>* before = nullptr) const {
    for (size_t i = 0; i < count; ++i) {
      const double want = value[i] + (before != nullptr ? (*before)[i] : 0.0f);
      const auto tolerance = kvant::test::f32_activation_tolerance(magnitude[i]);
      ASSERT_LE(std::abs(got[i] - want), tolerance.absolute + tolerance.relative * std::abs(want)) << "element " << i;
    }
  }
  std::vector<double> value, magnitude;
};

/// Products of 65 to 256 rows by the kernel of ops/cuda/batch_rows.h.
class CudaBatchRows : public kvant::testing::CudaStreamTest {
 protected:
  void SetUp() override {
    CudaStreamTest::SetUp();
    if (IsSkipped()) return;
    auto batch = cuda::BatchRows::create();
    ASSERT_TRUE(batch) << batch.error().to_string();
    batch_ = *std::move(batch);
    if (batch_ == nullptr) GTEST_SKIP() << "products of 65 to 256 rows are not this device's";
  }

  BatchRowsWeight describe(const DeviceBuffer& weight, int out, int in, BatchRowsCut cut) {
    const auto described = cuda::BatchRows::describe(weight.data(), out, in, cut);
    EXPECT_TRUE(described) << described.error().to_string();
    return *described;
  }
  void run(const BatchRowsWeight& weight, const DeviceBuffer& x, int rows, LinearOutput output, const DeviceBuffer& y,
           Gate gate = {}) {
    const Status status = batch_->multiply(
        {.weight = &weight, .x = x.data(), .y = y.data(), .num_rows = rows, .output = output, .gate = gate},
        stream().cuda);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  DeviceBuffer filled(size_t count, float value) { return send(std::vector<float>(count, value)); }

  std::unique_ptr<cuda::BatchRows> batch_;
};

TEST_F(CudaBatchRows, EveryCutGivesTheProduct) {
  // Of 10 chunks, the last one narrow; the last tile is narrow with any number of outputs.
  constexpr int kOut = 1008, kIn = 584;
  const std::vector<float> weight = rounded(random_values(kOut * kIn, 1)), x = rounded(random_values(256 * kIn, 2));
  const Reference reference(weight, x, kIn);
  const DeviceBuffer device_weight = send(bits(weight)), device_x = send(bits(x));
  for (const int rows : {65, 96, 128, 129, 192, 199, 256}) {
    for (const int outputs : kTiles) {
      for (const int split : {1, 2, 3, 4}) {
        if (outputs == 192 ? split > 1 : rows > 192) continue;
        SCOPED_TRACE(::testing::Message() << rows << " rows, tiles of " << outputs << ", split by " << split);
        const BatchRowsWeight described = describe(device_weight, kOut, kIn, {.outputs = outputs, .split = split});
        const auto count = static_cast<size_t>(rows * kOut);
        const DeviceBuffer y = filled(count + kGuard, 7.0f);
        run(described, device_x, rows, LinearOutput::kF32, y);
        const std::vector<float> got = read<float>(y);
        ASSERT_NO_FATAL_FAILURE(reference.expect(got, count));
        for (size_t i = count; i < got.size(); ++i) ASSERT_EQ(got[i], 7.0f) << "beyond the output";
        run(described, device_x, rows, LinearOutput::kAddF32, y);
        const std::vector<float> twice = read<float>(y);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(twice[i], 2 * got[i]) << "element " << i;
        for (size_t i = count; i < got.size(); ++i) ASSERT_EQ(twice[i], 7.0f) << "beyond the output";
        const DeviceBuffer narrow = send(std::vector<uint16_t>(count + kGuard, 0x7fff));
        run(described, device_x, rows, LinearOutput::kActivations, narrow);
        std::vector<uint16_t> want_narrow = bits(got);
        std::fill(want_narrow.begin() + static_cast<std::ptrdiff_t>(count), want_narrow.end(), uint16_t{0x7fff});
        ASSERT_EQ(read<uint16_t>(narrow), want_narrow);
      }
    }
  }
}

TEST_F(CudaBatchRows, GatesToTheBitsOfAKernelOfItsOwn) {
  constexpr int kOut = 1008, kIn = 584;
  std::vector<float> values = random_values(256 * kIn, 2);
  for (float& value : values) value *= 0.06f;  // Sums of size 1.4.
  const DeviceBuffer weight = send(bits(random_values(kOut * kIn, 1))), x = send(bits(values));
  for (const int rows : {65, 192, 250}) {
    for (const int outputs : kTiles) {
      for (const int split : {1, 3}) {
        if (outputs == 192 ? split > 1 : rows > 192) continue;
        for (const GateKind kind : {GateKind::kSilu, GateKind::kGeluTanh, GateKind::kClampedSwish}) {
          SCOPED_TRACE(::testing::Message() << rows << " rows, tiles of " << outputs << ", split by " << split
                                            << ", gate " << static_cast<int>(kind));
          const Gate gate{.kind = kind, .limit = 1.0f};
          const BatchRowsWeight described = describe(weight, kOut, kIn, {.outputs = outputs, .split = split});
          ASSERT_TRUE(described.takes(rows, LinearOutput::kGated));
          const auto count = static_cast<size_t>(rows * kOut);
          const std::vector<uint16_t> untouched(count / 2 + kGuard, 0x7fff);
          const DeviceBuffer both = send(std::vector<uint16_t>(count)), want = send(untouched), got = send(untouched);
          run(described, x, rows, LinearOutput::kActivations, both);
          ASSERT_TRUE(
              apply_gate({.gate = gate, .gate_up = both.data(), .num_rows = rows, .size = kOut / 2, .out = want.data()},
                         stream())
                  .ok());
          run(described, x, rows, LinearOutput::kGated, got, gate);
          ASSERT_EQ(read<uint16_t>(got), read<uint16_t>(want));
        }
      }
    }
  }
}

TEST_F(CudaBatchRows, KeepsNanAndInfinityToTheirRows) {
  constexpr int kOut = 1000, kIn = 1096, kRows = 190;
  const DeviceBuffer weight = send(bits(random_values(kOut * kIn, 1)));
  const BatchRowsWeight described = describe(weight, kOut, kIn, {.outputs = 128, .split = 4});
  std::vector<float> x = random_values(kRows * kIn, 2);
  const DeviceBuffer y = filled(size_t{kRows} * kOut, 0.0f);
  const auto product = [&] {
    run(described, send(bits(x)), kRows, LinearOutput::kF32, y);
    return read<float>(y);
  };
  const std::vector<float> clean = product();
  x[3 * kIn + 700] = std::numeric_limits<float>::quiet_NaN();
  x[150 * kIn + 20] = std::numeric_limits<float>::infinity();
  const std::vector<float> got = product();
  ASSERT_NO_FATAL_FAILURE(kvant::test::expect_spoiled_rows(got, clean, kOut, {3, 150}));
}

TEST_F(CudaBatchRows, LinearLayersUseThem) {
  ThreadPool pool(2);
  const auto context = LinearContext::create(stream(), pool);
  ASSERT_TRUE(context) << context.error().to_string();
  const auto linear = [&](int out, int in, const std::vector<float>& weight) {
    return Linear::create(
        LinearFormat::kBf16, out, in,
        [&](int64_t begin, int64_t end, float* to) {
          std::copy(weight.begin() + begin * in, weight.begin() + end * in, to);
        },
        256, stream(), context->get());
  };
  constexpr int kRows = 190;
  // A tile for nearly every multiprocessor of an H100 or H200.
  constexpr int kOut = 24576, kIn = 128, kSize = kOut / 2;
  const auto gated = linear(kOut, kIn, random_values(kOut * kIn, 1));
  ASSERT_TRUE(gated) << gated.error().to_string();
  if (!(*gated)->gates(kRows)) GTEST_SKIP() << "this device has another number of multiprocessors";
  EXPECT_TRUE((*gated)->gates(65));
  EXPECT_TRUE((*gated)->gates(256));
  EXPECT_FALSE((*gated)->gates(257));
  std::vector<float> values = random_values(kRows * kIn, 2);
  for (float& value : values) value *= 0.1f;
  const DeviceBuffer x = send(bits(values));
  const auto count = static_cast<size_t>(kRows * kSize);
  const DeviceBuffer both = send(std::vector<uint16_t>(2 * count)), got = send(std::vector<uint16_t>(count)),
                     want = send(std::vector<uint16_t>(count));
  ASSERT_TRUE((*gated)->run({.x = x.data(), .num_rows = kRows, .y = both.data()}, stream()).ok());
  ASSERT_TRUE(
      apply_gate({.gate = {}, .gate_up = both.data(), .num_rows = kRows, .size = kSize, .out = want.data()}, stream())
          .ok());
  ASSERT_TRUE((*gated)
                  ->run({.x = x.data(), .num_rows = kRows, .y = got.data(), .output = LinearOutput::kGated}, stream())
                  .ok());
  const std::vector<uint16_t> halves = read<uint16_t>(both), got_bits = read<uint16_t>(got),
                              want_bits = read<uint16_t>(want);
  for (size_t i = 0; i < count; ++i) {
    // Sums of another order may round either half otherwise.
    const size_t at = i + i / kSize * kSize;
    const double size = (1 + std::abs(bf16_to_float(halves[at]))) * (1 + std::abs(bf16_to_float(halves[at + kSize])));
    const auto tolerance = kvant::test::bf16_activation_tolerance(size);
    ASSERT_LE(std::abs(bf16_to_float(got_bits[i]) - bf16_to_float(want_bits[i])),
              tolerance.absolute + tolerance.relative * 2 * size)
        << "element " << i;
  }
  // Three slices of each tile.
  constexpr int kAddedOut = 4096, kAddedIn = 9224;
  const std::vector<float> weight = rounded(random_values(kAddedOut * kAddedIn, 3)),
                           added_x = rounded(random_values(kRows * kAddedIn, 4)),
                           before = random_values(kRows * kAddedOut, 5);
  const auto added = linear(kAddedOut, kAddedIn, weight);
  ASSERT_TRUE(added) << added.error().to_string();
  const DeviceBuffer device_x = send(bits(added_x)), y = send(before);
  ASSERT_TRUE(
      (*added)
          ->run({.x = device_x.data(), .num_rows = kRows, .y = y.data(), .output = LinearOutput::kAddF32}, stream())
          .ok());
  const std::vector<float> sums = read<float>(y);
  for (size_t i = 0; i < sums.size(); i += 1009) {
    double sum = before[i], magnitude = std::abs(before[i]);
    for (size_t k = 0; k < size_t{kAddedIn}; ++k) {
      const double term = double{added_x[i / kAddedOut * kAddedIn + k]} * weight[i % kAddedOut * kAddedIn + k];
      sum += term;
      magnitude += std::abs(term);
    }
    const auto tolerance = kvant::test::f32_activation_tolerance(magnitude);
    ASSERT_LE(std::abs(sums[i] - sum), tolerance.absolute + tolerance.relative * std::abs(sum)) << "element " << i;
  }
}

TEST_F(CudaBatchRows, GivesTheSameBitsInEveryRunAndReplay) {
  // In turns: each finds the memory for sums as the one before left it.
  struct Step {
    int out, in, rows;
    BatchRowsCut cut;
  };
  constexpr Step kSteps[] = {{4096, 1024, 192, {.outputs = 128, .split = 4}},
                             {2048, 1096, 130, {.outputs = 96, .split = 3}},
                             {12288, 512, 250, {.outputs = 192}},
                             {3000, 3072, 96, {.outputs = 96, .split = 4}},
                             {6144, 2048, 192, {.outputs = 96, .split = 2}}};
  std::vector<BatchRowsWeight> products;
  std::vector<DeviceBuffer> weights, xs, ys;
  for (const Step& step : kSteps) {
    weights.push_back(send(bits(random_values(step.out * step.in, 4))));
    products.push_back(describe(weights.back(), step.out, step.in, step.cut));
    xs.push_back(send(bits(random_values(step.rows * step.in, 5))));
    ys.push_back(filled(static_cast<size_t>(step.rows * step.out), -1.0f));
  }
  const auto run_all = [&] {
    for (size_t i = 0; i < products.size(); ++i)
      ASSERT_NO_FATAL_FAILURE(run(products[i], xs[i], kSteps[i].rows, LinearOutput::kF32, ys[i]));
  };
  run_all();
  expect_replays_alike(run_all, ys, {.rounds = 100, .read_every = 5});
}

}  // namespace
}  // namespace kvant::ops
