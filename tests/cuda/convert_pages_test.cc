#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/attn/append.h"
#include "kvant/core/thread_pool.h"
#include "support/device_cache.h"
#include "support/layout_list.h"

namespace kvant::attn {
namespace {

using test::DeviceCache;
using test::GuardedDeviceBytes;
using test::TestCache;

class CudaAgePages : public test::CudaTest {};
class CudaConvertPages : public test::CudaTest {};
class CudaDequantise : public test::CudaTest {};

constexpr ScalePolicy kPolicies[] = {ScalePolicy::kAmax, ScalePolicy::kFourOverSix, ScalePolicy::kSearch};
constexpr std::pair<KvFormat, KvFormat> kPairs[] = {{KvFormat::kNvfp4, KvFormat::kNvfp4},
                                                    {KvFormat::kE4m3, KvFormat::kNvfp4},
                                                    {KvFormat::kE5m2, KvFormat::kE4m3},
                                                    {KvFormat::kBf16, KvFormat::kF16}};

KvLayout sizes_of(std::pair<KvFormat, KvFormat> formats, int32_t k_dim, int32_t v_dim) {
  return {.k_format = formats.first,
          .v_format = formats.second,
          .head_dim_k = k_dim,
          .head_dim_v = v_dim,
          .num_kv_heads = 3,
          .page_size = 16};
}

void fill_random(std::vector<uint8_t>& bytes, uint32_t seed) {
  test::Random random(seed);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits() >> 7);
}

TEST_F(CudaAgePages, WritesTheBytesOfTheCpuAndSkipsPadding) {
  ThreadPool pool(2);
  uint32_t seed = 1;
  for (const auto& formats : kPairs) {
    for (const KvLayout& layout : test::in_all_orders(sizes_of(formats, 80, 128))) {
      for (const ScalePolicy policy : kPolicies) {
        SCOPED_TRACE(layout.to_string());
        TestCache want(layout, 4, 5);
        want.set_scales({0.02f, 0.03f, 4.0f}, {0.01f, 0.25f, 0.5f});
        fill_random(want.exact, seed++);
        const DeviceCache got(want);
        const std::vector<PageAge> ages = {{2, 0}, {4, 3}};
        const std::vector<PageAge> padded = {{2, 0}, {-1, -1}, {5, 1}, {4, 3}, {0, 4}, {-1, 2}, {1, -1}};
        const GuardedDeviceBytes device_ages(padded);
        ASSERT_EQ(age_pages({.cache = want.view(), .policy = policy, .ages = ages.data(), .num_ages = 2},
                            Stream::on_cpu(pool)),
                  Status());
        ASSERT_EQ(age_pages({.cache = got.view(),
                             .policy = policy,
                             .ages = device_ages.data<PageAge>(),
                             .num_ages = std::ssize(padded)},
                            cuda()),
                  Status());
        sync();
        test::expect_same_pools(got, want);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaAgePages, ReplaysAGraphWithAnotherList) {
  ThreadPool pool(1);
  TestCache want(sizes_of(kPairs[0], 128, 128), 4, 4);
  fill_random(want.exact, 8);
  const DeviceCache got(want);
  const GuardedDeviceBytes device_ages(2 * sizeof(PageAge));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  test::check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  ASSERT_EQ(age_pages({.cache = got.view(), .ages = device_ages.data<PageAge>(), .num_ages = 2}, cuda()), Status());
  test::check_cuda(cudaStreamEndCapture(stream_, &graph));
  test::check_cuda(cudaGraphInstantiate(&exec, graph, 0));
  for (const std::vector<PageAge>& ages : {std::vector<PageAge>{{0, 1}, {-1, -1}}, {{3, 0}, {1, 3}}}) {
    device_ages.write(ages);
    test::check_cuda(cudaGraphLaunch(exec, stream_));
    sync();
    for (const PageAge& age : ages) {
      if (age.exact_page < 0) continue;
      ASSERT_EQ(age_pages({.cache = want.view(), .ages = &age, .num_ages = 1}, Stream::on_cpu(pool)), Status());
    }
    test::expect_same_pools(got, want);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST_F(CudaConvertPages, EveryPairOfOrdersGivesTheBytesOfTheCpu) {
  ThreadPool pool(2);
  for (const auto& formats : kPairs) {
    const std::vector<KvLayout> layouts = test::in_all_orders(sizes_of(formats, 96, 64));
    for (const KvLayout& from_layout : layouts) {
      for (const KvLayout& to_layout : layouts) {
        SCOPED_TRACE(from_layout.to_string() + " to " + to_layout.to_string());
        TestCache from(from_layout, 3, 0), to(to_layout, 4, 0);
        fill_random(from.base, 31);
        const DeviceCache device_from(from), device_to(to);
        ASSERT_EQ(convert_pages(from_layout, device_from.view().base, to_layout, device_to.view().base, cuda()),
                  Status());
        sync();
        ASSERT_EQ(convert_pages(from_layout, from.view().base, to_layout, to.view().base, Stream::on_cpu(pool)),
                  Status());
        test::expect_same_pools(device_to, to);
        test::expect_same_pools(device_from, from);
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Bits, but any NaN for a NaN.
bool same_values(const std::vector<float>& got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    const bool both_nan = is_nan(got[i]) && is_nan(want[i]);
    if (!both_nan && float_to_bits(got[i]) != float_to_bits(want[i])) {
      ADD_FAILURE() << "value " << i << ": " << got[i] << " instead of " << want[i];
      return false;
    }
  }
  return got.size() == want.size();
}

TEST_F(CudaDequantise, GivesTheValuesOfTheCpuAndZerosForSlotsThatAreNotThere) {
  ThreadPool pool(2);
  for (const auto& formats : kPairs) {
    for (const KvLayout& layout : test::in_all_orders(sizes_of(formats, 80, 128))) {
      SCOPED_TRACE(layout.to_string());
      TestCache cache(layout, 2, 2);
      cache.set_scales({0.02f, 0.03f, 4.0f}, {0.01f, 0.25f, 0.5f});
      fill_random(cache.base, 12);
      fill_random(cache.exact, 13);
      const DeviceCache device(cache);
      const std::vector<int64_t> slots = {3, kSkipSlot, 31, 5 | kExactSlotBit, 16, kSkipSlot, 31 | kExactSlotBit};
      std::vector<int64_t> device_slots = slots;
      device_slots[1] = 32;  // Refused on the CPU, skipped here.
      device_slots[5] = (int64_t{1} << 40) | kExactSlotBit;
      std::vector<float> k(7 * 3 * 80), v(7 * 3 * 128);
      ASSERT_EQ(dequantise(cache.view(), slots, k.data(), v.data(), Stream::on_cpu(pool)), Status());
      const GuardedDeviceBytes device_k(k.size() * 4), device_v(v.size() * 4), list(device_slots);
      ASSERT_EQ(dequantise(device.view(), {list.data<int64_t>(), device_slots.size()}, device_k.data<float>(),
                           device_v.data<float>(), cuda()),
                Status());
      sync();
      EXPECT_TRUE(same_values(device_k.read<float>(), k));
      EXPECT_TRUE(same_values(device_v.read<float>(), v));
      EXPECT_TRUE(device_k.guards_intact() && device_v.guards_intact());
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvant::attn
