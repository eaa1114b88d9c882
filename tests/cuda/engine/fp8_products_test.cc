#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/float_bits.h"
#include "kvant/core/thread_pool.h"
#include "ops/cuda/quantise_rows.h"
#include "ops/linear.h"
#include "support/cuda_stream_test.h"
#include "unit/ops/test_inputs.h"

namespace kvant::ops {
namespace {

using test::bits;
using test::random_values;
using test::rounded;

constexpr int kGroup = kFp8Group;

struct QuantisedRows {
  std::vector<uint8_t> codes;
  std::vector<float> scales;  ///< [columns / kGroup, padded rows]
};

QuantisedRows quantise(const std::vector<float>& x, int rows, int columns) {
  const auto padded = static_cast<int>(padded_fp8_rows(rows));
  QuantisedRows out{.codes = std::vector<uint8_t>(static_cast<size_t>(padded * columns), 0),
                    .scales = std::vector<float>(static_cast<size_t>(padded * (columns / kGroup)), 1.0f)};
  for (int row = 0; row < rows; ++row) {
    for (int first = 0; first < columns; first += kGroup) {
      const auto at = static_cast<size_t>(row * columns + first);
      float largest = 0.0f;
      for (size_t i = 0; i < kGroup; ++i) largest = std::max(largest, std::abs(x[at + i]));
      const float scale = largest > 0.0f ? largest / 448.0f : 1.0f;
      out.scales[static_cast<size_t>(first / kGroup * padded + row)] = scale;
      for (size_t i = 0; i < kGroup; ++i) out.codes[at + i] = float_to_e4m3(x[at + i] / scale);
    }
  }
  return out;
}

class CudaFp8Products : public kvant::testing::CudaStreamTest {
 protected:
  ThreadPool pool_{2};
};

TEST_F(CudaFp8Products, RowsAreQuantisedAsOnTheCpu) {
  for (const int columns : {128, 384, 4096, 12288}) {
    const int rows = 5;
    std::vector<float> x = random_values(rows * columns, 7, true);
    std::fill(x.begin() + columns, x.begin() + 2 * columns, 0.0f);
    for (int i = 0; i < columns; ++i) x[static_cast<size_t>(2 * columns + i)] *= 1e-30f;
    x = rounded(std::move(x));
    const QuantisedRows want = quantise(x, rows, columns);
    const DeviceBuffer device_x = send(bits(x)), codes = send(std::vector<uint8_t>(want.codes.size(), 0xff)),
                       scales = send(std::vector<float>(want.scales.size(), -1.0f));
    ASSERT_TRUE(cuda::quantise_rows({.x = device_x.data(),
                                     .num_rows = rows,
                                     .padded_rows = padded_fp8_rows(rows),
                                     .columns = columns,
                                     .codes = codes.data(),
                                     .scales = scales.as<float>()},
                                    stream().cuda)
                    .ok());
    EXPECT_EQ(read<float>(scales), want.scales) << columns;
    EXPECT_EQ(read<uint8_t>(codes), want.codes) << columns;
  }
}

/// Codes of every finite value, scales that differ tenfold, of groups or alike in blocks of 128 rows.
struct Weight {
  Weight(int out, int in, bool blocks) : in_features(in) {
    for (const float value : random_values(int64_t{out} * in, 1)) codes.push_back(float_to_e4m3(value * 64.0f));
    const int groups = in / kGroup;
    const std::vector<float> sizes = random_values(out * groups, 9);
    for (int row = 0; row < out; ++row)
      for (int group = 0; group < groups; ++group)
        scales.push_back(
            0.01f *
            (0.1f +
             std::min(1.0f, std::abs(sizes[static_cast<size_t>((blocks ? row / kGroup : row) * groups + group)]))));
  }
  Fp8WeightRows rows() const {
    return [this](int64_t begin, int64_t end, uint8_t* to, float* to_scales) {
      std::copy(codes.begin() + begin * in_features, codes.begin() + end * in_features, to);
      const int64_t groups = in_features / kGroup;
      std::copy(scales.begin() + begin * groups, scales.begin() + end * groups, to_scales);
    };
  }

  int in_features;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

TEST_F(CudaFp8Products, MultiplyLikeADoublePrecisionProductOfCodes) {
  auto context = LinearContext::create(stream(), pool_);
  ASSERT_TRUE(context) << context.error().to_string();
  if (!(*context)->multiplies_fp8(128, 128)) GTEST_SKIP() << "this device has no products of e4m3 with such scales";
  struct Size {
    int out, in;
    bool blocks;
  };
  // The last one takes scales of blocks at 130 rows.
  for (const auto& [out, in, blocks] : {Size{64, 128, false}, Size{576, 1536, false}, Size{3072, 640, true},
                                        Size{8192, 384, false}, Size{8192, 384, true}}) {
    const Weight weight(out, in, blocks);
    auto linear = Linear::create_fp8(out, in, weight.rows(), 130, stream(), context->get());
    ASSERT_TRUE(linear) << linear.error().to_string();
    for (const int rows : {1, 3, 16, 64, 65, 130}) {
      const std::vector<float> x = rounded(random_values(rows * in, 2, true));
      const QuantisedRows quantised = quantise(x, rows, in);
      const auto padded = static_cast<int>(padded_fp8_rows(rows));
      // One row is not padded.
      const std::vector<float> before = random_values((rows == 1 ? 1 : padded) * out, 3);
      const DeviceBuffer device_x = send(bits(x));
      for (const LinearOutput output : {LinearOutput::kActivations, LinearOutput::kF32, LinearOutput::kAddF32}) {
        const bool narrow = output == LinearOutput::kActivations;
        std::vector<DeviceBuffer> ys;
        ys.push_back(narrow ? send(std::vector<uint16_t>(before.size(), 0x7fff)) : send(before));
        const DeviceBuffer& y = ys[0];
        const auto run = [&] {
          const Status status =
              (*linear)->run({.x = device_x.data(), .num_rows = rows, .y = y.data(), .output = output}, stream());
          EXPECT_TRUE(status.ok()) << rows << " rows: " << status.to_string();
          return status.ok();
        };
        ASSERT_TRUE(run());
        std::vector<float> got;
        if (narrow) {
          for (const uint16_t value : read<uint16_t>(y)) got.push_back(bf16_to_float(value));
        } else {
          got = read<float>(y);
        }
        double errors = 0, sizes = 0;
        const int next_output = out > 1024 ? 37 : 1;
        for (int row = 0; row < rows; row += std::max(1, rows / 4)) {
          for (int o = 0; o < out; o += next_output) {
            double sum = 0, magnitude = 0;
            for (int i = 0; i < in; ++i) {
              const double term = double{e4m3_to_float(quantised.codes[static_cast<size_t>(row * in + i)])} *
                                  e4m3_to_float(weight.codes[static_cast<size_t>(o * in + i)]) *
                                  quantised.scales[static_cast<size_t>(i / kGroup * padded + row)] *
                                  weight.scales[static_cast<size_t>(o * (in / kGroup) + i / kGroup)];
              sum += term;
              magnitude += std::abs(term);
            }
            const auto index = static_cast<size_t>(row * out + o);
            if (output == LinearOutput::kAddF32) sum += before[index];
            const double error = std::abs(got[index] - sum);
            errors += error * error;
            sizes += sum * sum;
            // 32 products at a time and their sum so far keep 13 bits below the largest of them, cut, in groups of 128.
            const double cut = 33 * 0x1p-13 * (kGroup / 32) * magnitude;
            ASSERT_LE(error, cut + (narrow ? 0x1p-8 : 1e-6) * std::abs(sum))
                << rows << " rows of " << out << " x " << in << ", blocks " << blocks << ", output "
                << static_cast<int>(output) << ", row " << row << ", channel " << o << ": " << got[index]
                << " instead of " << sum;
          }
        }
        // In the mean what is cut is far less than that.
        EXPECT_LE(std::sqrt(errors / sizes), narrow ? 3e-3 : 1e-3)
            << rows << " rows of " << out << " x " << in << ", blocks " << blocks;
        if (output == LinearOutput::kAddF32) {
          for (auto i = static_cast<size_t>(rows * out); i < got.size(); ++i) ASSERT_EQ(got[i], before[i]) << i;
        }
        if (output == LinearOutput::kF32) expect_replays_alike(run, ys, {.rounds = 3});
      }
    }
  }
}

TEST_F(CudaFp8Products, ShapesThatTheLibraryLacksAreRefused) {
  auto context = LinearContext::create(stream(), pool_);
  ASSERT_TRUE(context) << context.error().to_string();
  for (const auto& [out, in] : {std::pair{24, 128}, std::pair{128, 192}}) {
    EXPECT_FALSE((*context)->multiplies_fp8(out, in));
    const Weight weight(out, in, false);
    const auto linear = Linear::create_fp8(out, in, weight.rows(), 1, stream(), context->get());
    ASSERT_FALSE(linear);
    EXPECT_EQ(linear.error().code(), StatusCode::kUnsupported);
  }
}

}  // namespace
}  // namespace kvant::ops
