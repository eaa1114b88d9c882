#include "kvant/attn/append.h"

#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kvant/core/thread_pool.h"
#include "support/device_cache.h"
#include "support/layout_list.h"
#include "support/prepared_heads.h"

namespace kvant::attn {
namespace {

using test::DeviceCache;
using test::GuardedDeviceBytes;
using test::Random;
using test::TestCache;

class CudaAppend : public test::CudaTest {};

constexpr KvFormat kFormats[] = {KvFormat::kF16, KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4};
constexpr ScalePolicy kPolicies[] = {ScalePolicy::kAmax, ScalePolicy::kFourOverSix, ScalePolicy::kSearch};
constexpr KeyConditioning kConditionings[] = {KeyConditioning::kNone, KeyConditioning::kMean, KeyConditioning::kFull};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBf16};
constexpr std::pair<int32_t, int32_t> kHeadDims[] = {{64, 64},   {80, 80},   {96, 112}, {128, 128},
                                                     {192, 128}, {256, 256}, {272, 64}, {512, 512}};

struct Case {
  KvLayout layout;
  ScalePolicy policy = ScalePolicy::kAmax;
  KeyConditioning conditioning = KeyConditioning::kNone;
  DType dtype = DType::kF32;
  std::vector<float> scales{};  ///< Of K; those of V are half as large.
  int64_t num_tokens = 37;
  int64_t gap_bytes = 16;  ///< Between pages; decides how wide the stores can be.
  size_t shift = 0;        ///< Elements and bytes off alignment.
  uint32_t seed = 1;
};

std::string describe(const Case& c) {
  return fmt::format("{} policy={} cond={} dtype={} scales={} gap={} shift={} seed={}", c.layout.to_string(),
                     to_string(c.policy), to_string(c.conditioning), to_string(c.dtype), c.scales.size(), c.gap_bytes,
                     c.shift, c.seed);
}

void set_up(TestCache& cache, const Case& c) {
  cache.set_conditioner(c.conditioning, c.seed + 100);
  std::vector<float> v = c.scales;
  for (float& scale : v) scale *= 0.5f;
  cache.set_scales(c.scales, v);
}

/// Slots of both pools, skipped ones between.
std::vector<int64_t> scattered_slots(int64_t num_tokens, int64_t num_slots) {
  std::vector<int64_t> slots;
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t slot = (token * 7 + 3) % num_slots;
    slots.push_back(token % 5 == 4 ? kSkipSlot : token % 3 == 1 ? slot | kExactSlotBit : slot);
  }
  return slots;
}

/// Writes `k` and `v` on both devices and compares both pools.
void check_append(const Case& c, const std::vector<float>& k_values, const std::vector<float>& v_values,
                  const std::vector<int64_t>& slots, int64_t num_pages, Stream stream) {
  ThreadPool pool(2);
  TestCache want(c.layout, num_pages, num_pages, c.gap_bytes);
  set_up(want, c);
  const DeviceCache got(want, c.shift);
  const auto k = test::to_dtype(k_values, c.dtype), v = test::to_dtype(v_values, c.dtype);
  const size_t shift_bytes = c.shift * static_cast<size_t>(dtype_bytes(c.dtype));
  const GuardedDeviceBytes device_k(k, shift_bytes), device_v(v, shift_bytes), device_slots(slots);
  AppendArgs args{.cache = want.view(),
                  .policy = c.policy,
                  .k = k.data(),
                  .v = v.data(),
                  .dtype = c.dtype,
                  .slots = slots.data(),
                  .num_tokens = static_cast<int64_t>(slots.size())};
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  args.cache = got.view();
  args.k = device_k.data();
  args.v = device_v.data();
  args.slots = device_slots.data<int64_t>();
  ASSERT_EQ(append(args, stream), Status());
  test::check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.cuda)));
  test::expect_same_pools(got, want);
}

void check_random(const Case& c, Stream stream) {
  SCOPED_TRACE(describe(c));
  const int64_t num_pages = 8 * c.num_tokens / c.layout.page_size + 1;
  // Arithmetic on NaN leaves payloads that only bf16 pages would keep.
  const bool specials = info(c.layout.k_format).quantised || c.conditioning == KeyConditioning::kNone;
  const int64_t heads = c.layout.num_kv_heads;
  check_append(c, test::random_values(c.num_tokens * heads * c.layout.head_dim_k, c.seed, specials),
               test::random_values(c.num_tokens * heads * c.layout.head_dim_v, c.seed + 1),
               scattered_slots(c.num_tokens, num_pages * c.layout.page_size), num_pages, stream);
}

std::vector<float> pick_scales(uint32_t seed, int32_t num_heads) {
  if (seed % 3 == 0) return {};
  if (seed % 3 == 1) return {seed % 2 == 0 ? 0.0625f : 0.013f};
  std::vector<float> scales;
  for (int32_t head = 0; head < num_heads; ++head) scales.push_back(0.0071f * static_cast<float>(head + 1));
  return scales;
}

TEST_F(CudaAppend, WritesTheBytesOfTheCpuForEveryPairOfFormatsHeadSizeAndOrder) {
  uint32_t seed = 1;
  for (const KvFormat k_format : kFormats) {
    for (const KvFormat v_format : kFormats) {
      for (const auto& [k_dim, v_dim] : kHeadDims) {
        const KvLayout sizes{.k_format = k_format,
                             .v_format = v_format,
                             .head_dim_k = k_dim,
                             .head_dim_v = v_dim,
                             .num_kv_heads = 1 + static_cast<int32_t>(seed % 3),
                             .page_size = 8 << seed % 4};
        for (const KvLayout& layout : test::in_all_orders(sizes)) {
          Case c{.layout = layout,
                 .policy = kPolicies[seed % 3],
                 .conditioning = kConditionings[seed / 3 % 3],
                 .dtype = kDTypes[seed / 2 % 3],
                 .scales = pick_scales(seed, layout.num_kv_heads),
                 .num_tokens = 11,
                 .gap_bytes = seed % 4 == 0   ? 16
                              : seed % 4 == 1 ? 8
                              : seed % 4 == 2 ? 0
                                              : 5,
                 .shift = seed % 5 == 0 ? 1u : 0u,
                 .seed = seed};
          check_random(c, cuda());
          if (HasFatalFailure()) return;
          ++seed;
        }
      }
    }
  }
  RecordProperty("cases", static_cast<int>(seed - 1));
}

TEST_F(CudaAppend, WritesTheBytesOfTheCpuForAllPoliciesConditioningsAndDtypesOfNvfp4) {
  uint32_t seed = 5000;
  for (const ScalePolicy policy : kPolicies) {
    for (const KeyConditioning conditioning : kConditionings) {
      for (const DType dtype : kDTypes) {
        const KvLayout sizes{.k_format = KvFormat::kNvfp4,
                             .v_format = KvFormat::kNvfp4,
                             .head_dim_k = 192,
                             .head_dim_v = 128,
                             .num_kv_heads = 2,
                             .page_size = 16};
        for (const KvLayout& layout : test::in_all_orders(sizes)) {
          Case c{.layout = layout,
                 .policy = policy,
                 .conditioning = conditioning,
                 .dtype = dtype,
                 .scales = pick_scales(seed, 2),
                 .seed = seed};
          check_random(c, cuda());
          if (HasFatalFailure()) return;
          ++seed;
        }
      }
    }
  }
}

/// Every 16-bit pattern of a dtype: all zeros, subnormals, infinities and NaNs.
TEST_F(CudaAppend, WritesTheBytesOfTheCpuForEvery16BitPattern) {
  for (const KvFormat format : kFormats) {
    for (const DType dtype : {DType::kF16, DType::kBf16}) {
      for (const std::vector<float>& scales : {std::vector<float>{}, {0.013f}, {0x1p-12f}, {900.0f}}) {
        const KvLayout layout{.k_format = format,
                              .v_format = format,
                              .head_dim_k = 128,
                              .head_dim_v = 128,
                              .num_kv_heads = 4,
                              .page_size = 16};
        const Case c{.layout = layout, .policy = ScalePolicy::kSearch, .dtype = dtype, .scales = scales};
        SCOPED_TRACE(describe(c));
        std::vector<float> ordered(65536), mixed(65536);
        for (uint32_t i = 0; i < 65536; ++i) {
          const auto half = static_cast<uint16_t>(i), other = static_cast<uint16_t>(i * 40503u);
          ordered[i] = dtype == DType::kF16 ? f16_to_float(half) : bf16_to_float(half);
          mixed[i] = dtype == DType::kF16 ? f16_to_float(other) : bf16_to_float(other);
        }
        // At once, and in halves whose rows are few enough for the other kernel.
        for (const size_t num_tokens : {size_t{128}, size_t{64}}) {
          std::vector<int64_t> slots(num_tokens);
          for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
          const auto size = static_cast<std::ptrdiff_t>(num_tokens * 4 * 128);
          for (std::ptrdiff_t first = 0; first < 65536; first += size) {
            const auto piece = [&](const std::vector<float>& all) {
              return std::vector<float>(all.begin() + first, all.begin() + first + size);
            };
            check_append(c, piece(ordered), piece(mixed), slots, 8, cuda());
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(CudaAppend, WritesTheBytesOfTheCpuForRandomFloatBits) {
  for (const KvFormat format : kFormats) {
    for (const float g : {1.0f, 0.37f, 0x1p-99f, 0x1p100f, 1.0000001f, 0x1.fffffep0f, 0x1.8p-98f, 0x1.7p99f}) {
      Random random(77);
      std::vector<float> values(64 * 2 * 256);
      for (float& value : values) value = bits_to_float(random.bits());
      const KvLayout layout{.k_format = format,
                            .v_format = format,
                            .head_dim_k = 256,
                            .head_dim_v = 256,
                            .num_kv_heads = 2,
                            .page_size = 8};
      const Case c{.layout = layout, .policy = ScalePolicy::kFourOverSix, .scales = {g}};
      SCOPED_TRACE(describe(c));
      std::vector<int64_t> slots(64);
      for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
      check_append(c, values, values, slots, 8, cuda());
      if (HasFatalFailure()) return;
    }
  }
}

/// Blocks whose quotients lie on the ties between codes and a few units in the last place beside them.
std::vector<float> values_near_ties(int64_t count, float g, uint32_t seed) {
  Random random(seed);
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 0.5f};
  std::vector<float> values;
  while (static_cast<int64_t>(values.size()) < count) {
    const float scale = e4m3_to_float(static_cast<uint8_t>(1 + random.below(0x7e)));
    const float step = fl_mul(scale, g);
    values.push_back(fl_mul(6.0f, step));
    for (int i = 1; i < 16; ++i) {
      const float tie = fl_mul(ties[random.below(8)], step);
      const float value = bits_to_float(float_to_bits(tie) + static_cast<uint32_t>(random.below(7) - 3));
      values.push_back(random.below(2) == 0 ? value : -value);
    }
  }
  return values;
}

TEST_F(CudaAppend, BreaksTiesAsTheCpuDoes) {
  // Some have steps a few units away from 1, 1.5 and 2 times a power of two, where approximate quotients go wrong
  // first.
  for (const float g : {1.0f, 1.0000001f, 1.0000002f, 0.99999994f, 0.9999999f, 1.5f, 1.5000001f, 1.4999998f, 0.013f,
                        0.31415927f, 3.3e-5f, 0x1.8p-99f, 0x1.234568p99f}) {
    for (const ScalePolicy policy : kPolicies) {
      const KvLayout layout{.k_format = KvFormat::kNvfp4,
                            .v_format = KvFormat::kNvfp4,
                            .head_dim_k = 128,
                            .head_dim_v = 128,
                            .num_kv_heads = 8,
                            .page_size = 16};
      const Case c{.layout = layout, .policy = policy, .scales = {g}};
      SCOPED_TRACE(describe(c));
      for (const int64_t num_tokens : {256, 32}) {  // Many rows, and few.
        std::vector<int64_t> slots(static_cast<size_t>(num_tokens));
        for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
        const int64_t count = num_tokens * 8 * 128;
        check_append(c, values_near_ties(count, g, 3), values_near_ties(count, 0.5f * g, 4), slots, 16, cuda());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaAppend, SkipsSlotsOutsideTheirPools) {
  const KvLayout layout{.k_format = KvFormat::kNvfp4,
                        .v_format = KvFormat::kE4m3,
                        .head_dim_k = 64,
                        .head_dim_v = 64,
                        .num_kv_heads = 2,
                        .page_size = 8};
  TestCache want(layout, 2, 1);
  const DeviceCache got(want);
  const std::vector<int64_t> slots = {16,
                                      8 | kExactSlotBit,
                                      int64_t{1} << 40,
                                      (int64_t{1} << 40) | kExactSlotBit,
                                      -100,
                                      kExactSlotBit - 1,
                                      std::numeric_limits<int64_t>::max()};
  const GuardedDeviceBytes values(std::vector<float>(slots.size() * 2 * 64, 1.0f)), device_slots(slots);
  const AppendArgs args{.cache = got.view(),
                        .k = values.data(),
                        .v = values.data(),
                        .slots = device_slots.data<int64_t>(),
                        .num_tokens = static_cast<int64_t>(slots.size())};
  ASSERT_EQ(append(args, cuda()), Status());
  sync();
  test::expect_same_pools(got, want);
}

/// A HeadPreparation's arrays on the device.
class DevicePreparation {
 public:
  explicit DevicePreparation(const test::PreparationInputs& inputs) : inputs_(inputs) {}
  HeadPreparation moved(HeadPreparation args) {
    args.q_bias = copy(inputs_.q_bias), args.k_bias = copy(inputs_.k_bias), args.v_bias = copy(inputs_.v_bias);
    args.q_norm = copy(inputs_.q_norm), args.k_norm = copy(inputs_.k_norm);
    args.cosines = copy(inputs_.cosines), args.sines = copy(inputs_.sines);
    return args;
  }

 private:
  const float* copy(const std::vector<float>& values) {
    if (values.empty()) return nullptr;
    arrays_.emplace_back(values);
    return arrays_.back().data<float>();
  }
  const test::PreparationInputs& inputs_;
  std::vector<GuardedDeviceBytes> arrays_;
};

/// Prepares and appends rows of one projection on both devices, keys and values in place; compares all bytes.
void check_prepared(const Case& c, const test::PreparationCase& prepared, Stream stream) {
  SCOPED_TRACE(describe(c) + " " + describe(prepared));
  ThreadPool pool(2);
  const int64_t num_pages = 8 * c.num_tokens / c.layout.page_size + 1;
  TestCache want(c.layout, num_pages, num_pages, c.gap_bytes);
  set_up(want, c);
  const DeviceCache got(want, c.shift);
  const test::PreparationInputs inputs(prepared, c.layout, c.num_tokens, c.seed);
  const int64_t bytes = dtype_bytes(c.dtype), q_width = int64_t{prepared.num_q_heads} * c.layout.head_dim_k;
  const int64_t k_width = int64_t{c.layout.num_kv_heads} * c.layout.head_dim_k;
  const int64_t width = q_width + k_width + int64_t{c.layout.num_kv_heads} * c.layout.head_dim_v;
  std::vector<std::byte> rows = test::to_dtype(test::random_values(c.num_tokens * width, c.seed + 20, false), c.dtype);
  std::vector<std::byte> q(static_cast<size_t>(c.num_tokens * q_width * bytes));
  const size_t shift_bytes = c.shift * static_cast<size_t>(bytes);
  const GuardedDeviceBytes device_rows(rows, shift_bytes), device_q(q.size(), shift_bytes);
  const std::vector<int64_t> slots = scattered_slots(c.num_tokens, num_pages * c.layout.page_size);
  const GuardedDeviceBytes device_slots(slots);
  const auto args_of = [&](const KvCacheView& cache, std::byte* projection, std::byte* q_out, const int64_t* at) {
    std::byte* k = projection + q_width * bytes;
    std::byte* v = k + k_width * bytes;
    return AppendArgs{.cache = cache,
                      .policy = c.policy,
                      .k = k,
                      .v = v,
                      .dtype = c.dtype,
                      .k_token_stride = width,
                      .v_token_stride = width,
                      .slots = at,
                      .num_tokens = c.num_tokens,
                      .preparation = {.norm_epsilon = 1e-5f,
                                      .num_pairs = prepared.num_pairs,
                                      .pairs = prepared.pairs,
                                      .q = projection,
                                      .q_token_stride = width,
                                      .num_q_heads = prepared.num_q_heads,
                                      .q_out = q_out,
                                      .k_out = k,
                                      .v_out = v}};
  };
  DevicePreparation device(inputs);
  AppendArgs on_device = args_of(got.view(), device_rows.data(), device_q.data(), device_slots.data<int64_t>());
  on_device.preparation = device.moved(on_device.preparation);
  ASSERT_EQ(append(on_device, stream), Status());
  AppendArgs args = args_of(want.view(), rows.data(), q.data(), slots.data());
  const auto data = [](const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };
  args.preparation.q_bias = data(inputs.q_bias), args.preparation.k_bias = data(inputs.k_bias);
  args.preparation.v_bias = data(inputs.v_bias), args.preparation.q_norm = data(inputs.q_norm);
  args.preparation.k_norm = data(inputs.k_norm), args.preparation.cosines = data(inputs.cosines);
  args.preparation.sines = data(inputs.sines);
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  test::check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.cuda)));
  test::expect_same_pools(got, want);
  ASSERT_TRUE(device_q.guards_intact());
  ASSERT_TRUE(device_rows.guards_intact());
  ASSERT_TRUE(device_q.read<std::byte>() == q);
  ASSERT_TRUE(device_rows.read<std::byte>() == rows);
}

TEST_F(CudaAppend, PreparesHeadsToTheBytesOfTheCpu) {
  uint32_t seed = 9000;
  for (const auto& [k_dim, v_dim] : kHeadDims) {
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kInterleaved}) {
      // Whole heads, whole units, pieces of units, none.
      for (const int32_t num_pairs : {k_dim / 2, 16, 12, 5, 0}) {
        for (const int64_t num_tokens : {3, 200}) {
          const KvFormat format = kFormats[seed % 5];
          const KvLayout layout{.k_format = format,
                                .v_format = kFormats[seed / 5 % 5],
                                .head_dim_k = k_dim,
                                .head_dim_v = v_dim,
                                .num_kv_heads = 1 + static_cast<int32_t>(seed % 3),
                                .page_size = 16};
          const Case c{.layout = layout,
                       .policy = kPolicies[seed % 3],
                       .conditioning = kConditionings[seed / 3 % 3],
                       .dtype = kDTypes[seed / 2 % 3],
                       .scales = pick_scales(seed, layout.num_kv_heads),
                       .num_tokens = num_tokens,
                       .shift = seed % 5 == 0 ? 1u : 0u,
                       .seed = seed};
          check_prepared(c,
                         {.num_q_heads = layout.num_kv_heads * (1 + static_cast<int32_t>(seed / 2 % 4)),
                          .num_pairs = num_pairs,
                          .pairs = pairs,
                          .bias = seed % 2 == 0,
                          .norm = seed / 4 % 3 != 0},
                         cuda());
          if (HasFatalFailure()) return;
          ++seed;
        }
      }
    }
  }
}

TEST_F(CudaAppend, ReplaysAGraphWithOtherSlotsAndValues) {
  const KvLayout layout{.k_format = KvFormat::kNvfp4,
                        .v_format = KvFormat::kNvfp4,
                        .head_dim_k = 128,
                        .head_dim_v = 128,
                        .num_kv_heads = 2,
                        .page_size = 16};
  constexpr int64_t kTokens = 24;
  ThreadPool pool(1);
  TestCache want(layout, 8, 8);
  set_up(want, {.layout = layout, .conditioning = KeyConditioning::kFull, .scales = {0.02f, 0.03f}});
  const DeviceCache got(want);
  const GuardedDeviceBytes k(kTokens * 2 * 128 * sizeof(float)), v(kTokens * 2 * 128 * sizeof(float));
  const GuardedDeviceBytes device_slots(kTokens * sizeof(int64_t));
  AppendArgs args{.cache = got.view(),
                  .policy = ScalePolicy::kSearch,
                  .k = k.data(),
                  .v = v.data(),
                  .slots = device_slots.data<int64_t>(),
                  .num_tokens = kTokens};
  // The strict mode refuses allocations and synchronisation.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  test::check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  ASSERT_EQ(append(args, cuda()), Status());
  test::check_cuda(cudaStreamEndCapture(stream_, &graph));
  size_t num_nodes = 0;
  test::check_cuda(cudaGraphGetNodes(graph, nullptr, &num_nodes));
  EXPECT_EQ(num_nodes, 1u);
  test::check_cuda(cudaGraphInstantiate(&exec, graph, 0));
  for (uint32_t step = 0; step < 4; ++step) {
    const auto k_values = test::random_values(kTokens * 2 * 128, 40 + step);
    const auto v_values = test::random_values(kTokens * 2 * 128, 50 + step);
    std::vector<int64_t> slots;
    for (int64_t token = 0; token < kTokens; ++token)
      slots.push_back(token % 7 == step ? kSkipSlot
                                        : ((token * 5 + step * 31) % 128) | (step % 2 == 1 ? kExactSlotBit : 0));
    k.write(k_values);
    v.write(v_values);
    device_slots.write(slots);
    test::check_cuda(cudaGraphLaunch(exec, stream_));
    sync();
    AppendArgs host = args;
    host.cache = want.view();
    host.k = k_values.data();
    host.v = v_values.data();
    host.slots = slots.data();
    ASSERT_EQ(append(host, Stream::on_cpu(pool)), Status());
    test::expect_same_pools(got, want);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST_F(CudaAppend, ReadsTokensThroughTheirStride) {
  const KvLayout layout{.k_format = KvFormat::kE4m3,
                        .v_format = KvFormat::kBf16,
                        .head_dim_k = 64,
                        .head_dim_v = 80,
                        .num_kv_heads = 2,
                        .page_size = 8};
  ThreadPool pool(1);
  TestCache want(layout, 2, 0);
  const DeviceCache got(want);
  constexpr int64_t kStride = 300;
  const auto values = test::to_dtype(test::random_values(16 * kStride, 9), DType::kBf16);
  std::vector<int64_t> slots(16);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(15 - i);
  const GuardedDeviceBytes device_values(values), device_slots(slots);
  AppendArgs args{.cache = want.view(),
                  .k = values.data(),
                  .v = values.data() + 2 * 2 * 64,
                  .dtype = DType::kBf16,
                  .k_token_stride = kStride,
                  .v_token_stride = kStride,
                  .slots = slots.data(),
                  .num_tokens = 16};
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  args.cache = got.view();
  args.k = device_values.data();
  args.v = device_values.data() + 2 * 2 * 64;
  args.slots = device_slots.data<int64_t>();
  ASSERT_EQ(append(args, cuda()), Status());
  sync();
  test::expect_same_pools(got, want);
}

TEST_F(CudaAppend, RefusesWhatIsOutsideTheCudaLimits) {
  const KvLayout good{.head_dim_k = 64, .head_dim_v = 64, .num_kv_heads = 1, .page_size = 16};
  KvLayout f32 = good, small_head = good, small_page = good;
  f32.k_format = KvFormat::kF32;
  small_head.head_dim_v = 48;
  small_page.page_size = 4;
  for (const KvLayout& layout : {f32, small_head, small_page}) {
    AppendArgs args;
    args.cache.layout = layout;
    const Status status = append(args, cuda());
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
    EXPECT_NE(status.message().find("offered"), std::string::npos) << status.to_string();
  }
  AppendArgs args;
  args.cache.layout = good;
  EXPECT_EQ(append(args, cuda()), Status());
}

}  // namespace
}  // namespace kvant::attn
