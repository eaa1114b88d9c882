#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/attention.h"
#include "kvant/core/thread_pool.h"
#include "support/compare.h"
#include "support/device_cache.h"
#include "support/tolerance.h"

namespace kvant::attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kTokens = 37, kHeads = 5, kDim = 80;
constexpr size_t kRows = size_t{kTokens} * kHeads;

struct Parts {
  std::vector<std::vector<float>> outs, lses;
};

/// Rows in which any set of parts is empty, their outputs NaN, and logarithms far apart.
Parts random_parts(int32_t count) {
  Parts parts;
  Random random(11);
  for (int32_t part = 0; part < count; ++part) {
    std::vector<float> out(kRows * kDim), lse(kRows);
    for (size_t row = 0; row < kRows; ++row) {
      const bool empty = random.below(3) == 0 || row % 16 == 0;
      lse[row] = empty ? -kInf : random.uniform() * (row % 2 == 0 ? 2.0f : 200.0f);
      for (int32_t d = 0; d < kDim; ++d)
        out[row * kDim + static_cast<size_t>(d)] =
            empty ? std::numeric_limits<float>::quiet_NaN() : random.uniform() * 2.0f;
    }
    parts.outs.push_back(out);
    parts.lses.push_back(lse);
  }
  return parts;
}

using DeviceMerge = CudaTest;

TEST_F(DeviceMerge, AgreesWithTheCpu) {
  std::vector<float> sinks(kHeads);
  for (int32_t h = 0; h < kHeads; ++h) sinks[static_cast<size_t>(h)] = static_cast<float>(h) - 2.0f;
  for (const int32_t count : {1, 2, 9, 128}) {
    const Parts parts = random_parts(count);
    std::vector<GuardedDeviceBytes> memory;
    std::vector<const float*> host_outs, host_lses, outs, lses;
    for (int32_t part = 0; part < count; ++part) {
      const auto i = static_cast<size_t>(part);
      host_outs.push_back(parts.outs[i].data());
      host_lses.push_back(parts.lses[i].data());
      outs.push_back(memory.emplace_back(parts.outs[i]).data<float>());
      lses.push_back(memory.emplace_back(parts.lses[i]).data<float>());
    }
    const GuardedDeviceBytes device_sinks(sinks);
    for (const bool with_sinks : {false, true}) {
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
        const size_t bytes = kRows * kDim * static_cast<size_t>(dtype_bytes(dtype));
        std::vector<float> expected(kRows * kDim);
        std::vector<float> expected_lse(kRows);
        MergeArgs args{.outs = host_outs,
                       .lses = host_lses,
                       .sinks = with_sinks ? sinks.data() : nullptr,
                       .out = expected.data(),
                       .lse = expected_lse.data(),
                       .out_dtype = DType::kF32,
                       .num_tokens = kTokens,
                       .num_q_heads = kHeads,
                       .head_dim_v = kDim};
        ThreadPool pool(1);
        ASSERT_TRUE(merge(args, Stream::on_cpu(pool)).ok());
        const GuardedDeviceBytes out(bytes), lse(kRows * sizeof(float));
        args.outs = outs;
        args.lses = lses;
        args.sinks = with_sinks ? device_sinks.data<float>() : nullptr;
        args.out = out.data();
        args.out_dtype = dtype;
        args.lse = lse.data<float>();
        const Status status = merge(args, cuda());
        ASSERT_TRUE(status.ok()) << status.to_string();
        sync();
        EXPECT_TRUE(kvant::test::close_to(from_dtype(out.read<std::byte>(), dtype),
                                          std::vector<double>(expected.begin(), expected.end()),
                                          kvant::test::attention_tolerance(dtype)));
        EXPECT_TRUE(kvant::test::close_to(lse.read<float>(),
                                          std::vector<double>(expected_lse.begin(), expected_lse.end()),
                                          kvant::test::lse_tolerance()));
        EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
      }
    }
  }
}

TEST_F(DeviceMerge, RefusesMorePartsThanALaunchCarries) {
  const float value = 0.0f;
  const std::vector<const float*> parts(129, &value);
  float out = 0.0f;
  const MergeArgs args{.outs = parts, .lses = parts, .out = &out, .num_tokens = 1, .num_q_heads = 1, .head_dim_v = 1};
  EXPECT_THAT(merge(args, cuda()).message(), ::testing::HasSubstr("129 parts"));
}

}  // namespace
}  // namespace kvant::attn::test
