#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attn/reference/attention_reference.h"
#include "kvant/attn/append.h"
#include "kvant/attn/kernel_table.h"
#include "support/alloc_guard.h"
#include "support/captured_run.h"
#include "support/compare.h"
#include "support/device_problem_list.h"

namespace kvant::attn::test {
namespace {

using ::testing::HasSubstr;

/// A build of the core matrix has not every kernel of the table.
bool is_left_out(const Status& planned) {
  return planned.message().find("KVANT_CUDA_MATRIX=full") != std::string::npos;
}

class DeviceAttention : public ::testing::TestWithParam<NamedSpec> {};

void expect_the_oracle(const ProblemSpec& spec) {
  Problem problem(spec);
  const auto expected = reference::attention(problem.desc(), problem.args());
  DeviceProblem device(problem);
  const Status planned = device.plan();
  if (is_left_out(planned)) GTEST_SKIP() << planned.to_string();
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  for (int repeat = 0; repeat < 2; ++repeat) {  // The second finds the counters as the first left them.
    device.clear_results();
    const Status status = device.run();
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> out = device.out();
    for (size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(std::isfinite(out[i])) << "element " << i;
    const double error = kvant::test::relative_error(out, expected.out);
    ::testing::Test::RecordProperty("relative_error", fmt::format("{:.2e}", error));
    EXPECT_LE(error, kvant::test::tensor_core_relative_error());
    const bool conditioned = problem.desc().conditioning != KeyConditioning::kNone;
    EXPECT_TRUE(kvant::test::close_to(device.lse(), expected.lse, kvant::test::tensor_core_lse_tolerance(conditioned)));
  }
}

TEST_P(DeviceAttention, MatchesTheOracle) {
  SKIP_WITHOUT_A_DEVICE();
  expect_the_oracle(GetParam().spec);
}

/// Captured while the batch is padding alone; replayed after other lengths were written to device memory.
TEST_P(DeviceAttention, ReplaysACapturedStepWithOtherLengths) {
  SKIP_WITHOUT_A_DEVICE();
  Problem problem(GetParam().spec);
  DeviceProblem device(problem);
  const Status planned = device.plan();
  if (is_left_out(planned)) GTEST_SKIP() << planned.to_string();
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  device.clear_results();
  ASSERT_TRUE(device.run().ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<std::byte> direct = device.out_bytes();

  const std::vector<int32_t> offsets(problem.args().q_offsets,
                                     problem.args().q_offsets + problem.args().num_requests + 1);
  device.set_lengths(std::vector<int32_t>(offsets.size(), 0), std::vector<int32_t>(offsets.size() - 1, 0));
  device.clear_results();
  CapturedRun captured(device);
  captured.replay();
  for (const std::byte byte : device.out_bytes()) ASSERT_EQ(static_cast<uint8_t>(byte), kvant::test::kNanByte);

  device.set_lengths(offsets, problem.spec().kv_lens);
  captured.replay();
  EXPECT_TRUE(device.out_bytes() == direct);
}

INSTANTIATE_TEST_SUITE_P(Table, DeviceAttention, ::testing::ValuesIn(device_problems()), kProblemName);

class DeviceFormat : public ::testing::TestWithParam<KvFormat> {};

TEST_P(DeviceFormat, RepeatsBitForBit) {
  SKIP_WITHOUT_A_DEVICE();
  AttnDesc desc = device_desc(GetParam(), 128);
  for (const TokenHeadOrder order : {TokenHeadOrder::kNhd, TokenHeadOrder::kHnd}) {
    desc.layout.order = order;
    Problem problem({.desc = desc, .q_lens = {1, 4, 1, 0, 2}, .kv_lens = {3000, 700, 17, 0, 1500}, .seed = 400});
    DeviceProblem device(problem);
    ASSERT_TRUE(device.plan().ok());
    ASSERT_NO_FATAL_FAILURE(expect_repeats(device, 200));
  }
}

/// Kernels start before the one before them has ended, and guess lengths and pages meanwhile. Here that one is an
/// append to bf16 "pages" that hold the lengths and the page table, and it changes them each time.
void expect_lengths_of_the_kernel_before(const AttnDesc& desc, size_t num_requests, int32_t length) {
  const std::vector<int32_t> lengths[] = {std::vector<int32_t>(num_requests, length),
                                          std::vector<int32_t>(num_requests, length / 2 / 16 * 16)};
  Problem problem({.desc = desc, .q_lens = std::vector<int32_t>(num_requests, 1), .kv_lens = lengths[0], .seed = 402});
  DeviceProblem device(problem);
  ASSERT_TRUE(device.plan().ok());
  std::vector<int32_t> tables[] = {problem.page_table(), problem.page_table()};
  const auto stride = static_cast<size_t>(problem.args().page_table_stride);
  for (size_t r = 0; r < num_requests; ++r) {
    const auto first = tables[1].begin() + static_cast<ptrdiff_t>(r * stride);
    std::reverse(first, first + length / desc.layout.page_size);
  }
  const KvLayout words = {.k_format = KvFormat::kBf16,
                          .v_format = KvFormat::kBf16,
                          .head_dim_k = 256,
                          .head_dim_v = 256,
                          .num_kv_heads = 1,
                          .page_size = 16};
  constexpr size_t kWords = 128;  // In a row.
  ASSERT_LE(tables[0].size(), kWords);
  const DeviceBuffer page(static_cast<size_t>(words.page_bytes()), 0), slot(sizeof(int64_t), 0);
  const DeviceBuffer inputs(sizeof(int32_t) * kWords * 4, 0);
  AttnArgs args = device.args();
  args.kv_lens = reinterpret_cast<int32_t*>(page.data() + words.k_row(0, 0));
  args.page_table = reinterpret_cast<int32_t*>(page.data() + words.v_row(0, 0));
  AppendArgs writes[2];
  for (size_t i = 0; i < 2; ++i) {
    std::byte *k = inputs.data() + 2 * i * kWords * sizeof(int32_t), *v = k + kWords * sizeof(int32_t);
    ASSERT_EQ(cudaMemcpy(k, lengths[i].data(), num_requests * sizeof(int32_t), cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(v, tables[i].data(), tables[i].size() * sizeof(int32_t), cudaMemcpyHostToDevice), cudaSuccess);
    writes[i].cache.layout = words;
    writes[i].cache.base = {.data = page.data(), .num_pages = 1, .page_stride = words.page_bytes()};
    writes[i].k = k, writes[i].v = v;
    writes[i].dtype = DType::kBf16;
    writes[i].slots = reinterpret_cast<const int64_t*>(slot.data());
    writes[i].num_tokens = 1;
  }
  constexpr size_t kSteps = 64;
  const size_t bytes = device.out_bytes().size();
  const DeviceBuffer out(bytes * (kSteps + 2));
  cudaStream_t cuda = nullptr;
  ASSERT_EQ(cudaStreamCreate(&cuda), cudaSuccess);
  const std::unique_ptr<CUstream_st, decltype(&cudaStreamDestroy)> owner(cuda, &cudaStreamDestroy);
  const Stream stream = Stream::on_cuda(cuda);
  const auto step = [&](size_t i, size_t to) {
    args.out = out.data() + to * bytes;
    EXPECT_TRUE(append(writes[i], stream).ok());
    return to < 2 ? cudaDeviceSynchronize() : cudaSuccess;
  };
  for (size_t i = 0; i < 2; ++i) {  // What is right: nothing overlaps.
    ASSERT_EQ(step(i, i), cudaSuccess);
    ASSERT_TRUE(run(device.made_plan(), args, stream).ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  for (size_t i = 0; i < kSteps; ++i) {
    ASSERT_EQ(step(i % 2, i + 2), cudaSuccess);
    ASSERT_TRUE(run(device.made_plan(), args, stream).ok());
  }
  std::vector<std::byte> all(bytes * (kSteps + 2));
  ASSERT_EQ(cudaMemcpy(all.data(), out.data(), all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  const auto result = [&](size_t i) {
    const auto first = all.begin() + static_cast<ptrdiff_t>(i * bytes);
    return std::vector<std::byte>(first, first + static_cast<ptrdiff_t>(bytes));
  };
  EXPECT_FALSE(result(0) == result(1));
  for (size_t i = 0; i < kSteps; ++i) EXPECT_TRUE(result(i + 2) == result(i % 2)) << "step " << i;
}

TEST_P(DeviceFormat, TakesLengthsThatTheKernelBeforeItWrites) {
  SKIP_WITHOUT_A_DEVICE();
  expect_lengths_of_the_kernel_before(device_desc(GetParam(), 128), 1, 704);
  expect_lengths_of_the_kernel_before(device_desc(GetParam(), 128), 5, 336);
}

/// Items of about a block each, whose exact pages are more tiles than one of its warps lists.
TEST(DeviceExactPages, MayBeMostPages) {
  SKIP_WITHOUT_A_DEVICE();
  AttnDesc desc = device_desc(KvFormat::kE4m3, 64);
  desc.num_q_heads = 16, desc.layout.num_kv_heads = 8;
  desc.exact_pages = true;
  expect_the_oracle({.desc = desc,
                     .q_lens = std::vector<int32_t>(34, 8),
                     .kv_lens = std::vector<int32_t>(34, 2140),
                     .head_tokens = 2140,
                     .seed = 403});
}

TEST_P(DeviceFormat, RepeatsPromptsBitForBit) {
  SKIP_WITHOUT_A_DEVICE();
  AttnDesc desc = device_desc(GetParam(), 128);
  for (const bool whole : {false, true}) {
    desc.batch_invariant = whole;
    Problem problem({.desc = desc, .q_lens = {300, 4, 0, 90}, .kv_lens = {1300, 700, 0, 90}, .seed = 403});
    DeviceProblem device(problem);
    ASSERT_TRUE(device.plan().ok());
    ASSERT_NO_FATAL_FAILURE(expect_repeats(device, 100));
  }
}

TEST_P(DeviceFormat, GivesARequestTheSameBitsInAnyBatch) {
  SKIP_WITHOUT_A_DEVICE();
  AttnDesc desc = device_desc(GetParam(), 128);
  desc.batch_invariant = true;
  Problem alone({.desc = desc, .q_lens = {5}, .kv_lens = {900}, .seed = 404});
  Problem among({.desc = desc, .q_lens = {5, 120, 0, 1}, .kv_lens = {900, 500, 0, 77}, .seed = 404});
  DeviceProblem one(alone), many(among);
  ASSERT_TRUE(one.plan().ok());
  ASSERT_TRUE(many.plan().ok());
  ASSERT_TRUE(one.run().ok());
  ASSERT_TRUE(many.run().ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<std::byte> expected = one.out_bytes();
  std::vector<std::byte> actual = many.out_bytes();
  actual.resize(expected.size());
  EXPECT_TRUE(actual == expected);
}

/// The same call with pages at the start of a pool and beyond 2^31 bytes and elements of it.
void expect_same_in_a_big_pool(const AttnDesc& desc, const std::vector<int32_t>& q_lens) {
  Problem problem({.desc = desc, .q_lens = q_lens, .kv_lens = {600, 90}, .seed = 401});
  const int64_t tokens_of_a_page =
      int64_t{2} * desc.layout.num_kv_heads * desc.layout.head_dim_k * desc.layout.page_size;
  const auto first_page =
      static_cast<int32_t>((int64_t{1} << 31) / std::min(desc.layout.page_bytes(), tokens_of_a_page) + 7);
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  const size_t needed = static_cast<size_t>(first_page + 100) * static_cast<size_t>(desc.layout.page_bytes() + 32);
  if (free_bytes < needed + (size_t{1} << 30)) GTEST_SKIP() << needed << " bytes do not fit the device";
  DeviceProblem small(problem), big(problem, first_page);
  ASSERT_TRUE(small.plan().ok());
  ASSERT_TRUE(big.plan().ok());
  ASSERT_TRUE(small.run().ok());
  ASSERT_TRUE(big.run().ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(small.out_bytes() == big.out_bytes());
}

TEST_P(DeviceFormat, ReadsPagesBeyondTwoGiga) {
  SKIP_WITHOUT_A_DEVICE();
  AttnDesc desc = device_desc(GetParam(), 128);
  for (const TokenHeadOrder order : {TokenHeadOrder::kNhd, TokenHeadOrder::kHnd}) {
    desc.layout.order = order;
    for (const std::vector<int32_t>& q_lens : {std::vector<int32_t>{1, 3}, std::vector<int32_t>{70, 3}})
      expect_same_in_a_big_pool(desc, q_lens);
  }
}
INSTANTIATE_TEST_SUITE_P(Core, DeviceFormat, ::testing::Values(KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(AllocGuard, SeesWhatACapturedStepMustNotDo) {
  SKIP_WITHOUT_A_DEVICE();
  const kvant::test::AllocGuard guard;
  const auto memory = std::make_unique<std::vector<int>>(3);
  EXPECT_GE(guard.host_allocations(), 2);
  EXPECT_EQ(guard.cuda_calls(), 0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(guard.cuda_calls(), 1);
}

TEST(DeviceImages, AreThereForEveryKernel) {
  SKIP_WITHOUT_A_DEVICE();
  const Status status = check_kernel_images(cuda_devices().front());
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(DevicePlan, RefusesByName) {
  SKIP_WITHOUT_A_DEVICE();
  const DeviceInfo device = cuda_devices().front();
  const AttnDesc desc = device_desc(KvFormat::kBf16, 128);
  const auto refusal = [&](AttnLimits limits, const DeviceInfo& on) {
    const Result<size_t> bytes = workspace_size(desc, limits, on, 1);
    return bytes ? std::string("made") : bytes.error().to_string();
  };
  EXPECT_THAT(refusal({.max_requests = 5000}, device), HasSubstr("needed: 5000 requests"));
  DeviceInfo other = device;
  other.compute_capability += 1;
  EXPECT_THAT(refusal({}, other), HasSubstr("call cudaSetDevice first"));
}

TEST(DevicePlan, TakesKernelsForTilePagesWhereTheyAre) {
  SKIP_WITHOUT_A_DEVICE();
  const auto kernel = [](int32_t q_len, auto change) {
    AttnDesc desc = tile_pages_desc();
    change(desc);
    Problem problem({.desc = desc, .q_lens = {q_len}, .kv_lens = {50}, .seed = 405});
    DeviceProblem device(problem);
    EXPECT_TRUE(device.plan().ok());
    const std::string& route = device.made_plan().route();
    return route.substr(route.rfind('/') + 1);
  };
  const auto plain = [](AttnDesc&) {};
  const auto nhd = [](AttnDesc& d) { d.layout.order = TokenHeadOrder::kNhd; };
  EXPECT_EQ(kernel(2, plain), "nvfp4_d128_r1");
  EXPECT_EQ(kernel(3, plain), "nvfp4_d128_r2_tile_pages");
  EXPECT_EQ(kernel(4, plain), "nvfp4_d128_r2_tile_pages");
  EXPECT_EQ(kernel(5, plain), "nvfp4_d128_r4_tile_pages");
  EXPECT_EQ(kernel(8, plain), "nvfp4_d128_r4_tile_pages");
  EXPECT_EQ(kernel(4, [](AttnDesc& d) { d.window = 20, d.sinks = true; }), "nvfp4_d128_r2_tile_pages");
  EXPECT_EQ(kernel(4, [](AttnDesc& d) { d.conditioning = KeyConditioning::kFull; }), "nvfp4_d128_r2_tile_pages");
  EXPECT_EQ(kernel(4, nhd), "nvfp4_d128_r2");
  EXPECT_EQ(kernel(8, nhd), "nvfp4_d128_r4");
  // The rows of one head lie side by side in either order.
  EXPECT_EQ(kernel(2, [&](AttnDesc& d) { nhd(d), d.layout.num_kv_heads = 1; }), "nvfp4_d128_r2_tile_pages");
  EXPECT_EQ(kernel(4, [](AttnDesc& d) { d.layout.page_size = 32; }), "nvfp4_d128_r2");
  EXPECT_EQ(kernel(4, [](AttnDesc& d) { d.soft_cap = 30.0f; }), "nvfp4_d128_r2");
  EXPECT_EQ(kernel(4, [](AttnDesc& d) { d.exact_pages = true; }), "nvfp4_d128_r2_exact");
  EXPECT_EQ(kernel(4, [](AttnDesc& d) { d.layout.head_dim_k = d.layout.head_dim_v = 64; }), "nvfp4_d64_r2");
  EXPECT_EQ(kernel(4,
                   [](AttnDesc& d) {
                     d.layout = device_desc(KvFormat::kE4m3, 128).layout;
                     d.layout.order = TokenHeadOrder::kHnd;
                   }),
            "e4m3_d128_r2");
}

TEST(DeviceRun, RefusesWhatItCannotReadByName) {
  SKIP_WITHOUT_A_DEVICE();
  Problem problem({.desc = device_desc(KvFormat::kE4m3, 64), .q_lens = {1}, .kv_lens = {20}, .seed = 402});
  DeviceProblem device(problem);
  ASSERT_TRUE(device.plan().ok());
  const auto refusal = [&](auto change) {
    AttnArgs args = device.args();
    change(args);
    return run(device.made_plan(), args, Stream::on_cuda(nullptr)).message();
  };
  EXPECT_THAT(refusal([](AttnArgs& a) { a.cache.base.page_stride += 8; }), HasSubstr("multiples of 16"));
  EXPECT_THAT(refusal([](AttnArgs& a) { a.q = static_cast<const std::byte*>(a.q) + 2; }), HasSubstr("q: address"));
  EXPECT_THAT(refusal([](AttnArgs& a) { a.num_requests = 2; }), HasSubstr("num_requests 2"));
  EXPECT_THAT(refusal([](AttnArgs& a) { a.kv_lens = nullptr; }), HasSubstr("kv_lens"));
  ThreadPool pool(1);
  EXPECT_THAT(run(device.made_plan(), device.args(), Stream::on_cpu(pool)).message(), HasSubstr("CUDA stream"));
}

}  // namespace
}  // namespace kvant::attn::test
