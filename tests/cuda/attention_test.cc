#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attn/reference/attention_reference.h"
#include "kvant/attn/append.h"
#include "kvant/attn/kernel_table.h"
#include "kvant/attn/validate.h"
#include "support/alloc_guard.h"
#include "support/captured_run.h"
#include "support/compare.h"
#include "support/device_problem.h"
#include "support/problem_list.h"

namespace kvant::attn::test {
namespace {

using ::testing::HasSubstr;

AttnDesc device_desc(KvFormat k_format, KvFormat v_format, int32_t head_dim) {
  AttnDesc desc = simple_desc(6, 2, head_dim);
  store_for_device(desc, k_format, v_format);
  return desc;
}
AttnDesc device_desc(KvFormat format, int32_t head_dim) { return device_desc(format, format, head_dim); }

// Sizes at which blocks share requests and merge, beside what the CPU's list has.
std::vector<NamedSpec> size_problems(const AttnDesc& base) {
  std::vector<NamedSpec> problems;
  ProblemSpec many = {.desc = base, .q_lens = {}, .kv_lens = {}, .seed = 300};
  Random random(5);
  for (int i = 0; i < 150; ++i) {
    many.q_lens.push_back(random.below(4));
    many.kv_lens.push_back(many.q_lens.back() + random.below(400));
  }
  problems.push_back({"many_requests", many});
  problems.push_back({"one_long", {.desc = base, .q_lens = {1}, .kv_lens = {9000}, .seed = 301}});
  problems.push_back({"long_and_short", {.desc = base, .q_lens = {4, 1, 2}, .kv_lens = {7000, 3, 40}, .seed = 302}});
  // Enough items that are alike for each warp of an H200 to have its own, whether three or four blocks of one row tile
  // or two of two are resident; some rows are padding. Without padding nothing needs to be searched.
  const auto alike = [&](std::string name, size_t count, int32_t q_len, int32_t length, bool edges,
                         bool padded = true) {
    ProblemSpec spec = {
        .desc = base, .q_lens = {}, .kv_lens = {}, .seed = static_cast<uint32_t>(310 + count + name.size())};
    spec.desc.num_q_heads = 16, spec.desc.layout.num_kv_heads = 8;
    for (size_t i = 0; i < count; ++i) {
      const bool padding = padded && i % 97 == 13;
      spec.q_lens.push_back(padding ? 0 : q_len);
      spec.kv_lens.push_back(padding ? 0 : length - random.below(12));
    }
    if (edges) {
      spec.desc.exact_pages = true;
      spec.desc.conditioning = KeyConditioning::kFull;
    }
    problems.push_back({std::move(name), spec});
  };
  alike("alike", 255, 1, 48, false);
  alike("alike_fewer", 190, 1, 48, false);
  alike("alike_verify", 265, 6, 48, false);
  alike("alike_edges", 190, 1, 112, true);
  alike("all_alike", 260, 1, 48, false, false);
  alike("all_alike_fewer", 190, 1, 48, false, false);
  alike("all_alike_edges", 190, 1, 112, true, false);
  alike("all_alike_verify", 130, 6, 48, false, false);
  alike("all_alike_of_a_block", 49, 1, 112, false, false);
  alike("all_alike_in_parts", 33, 2, 300, false, false);
  // Clusters of two and four, also several for an item, and with parts that nothing is left for.
  alike("few_alike", 16, 6, 300, false, false);
  alike("few_alike_edges", 16, 6, 300, true, false);
  alike("one_of_two_clusters", 1, 1, 1100, false, false);
  alike("one_verify_of_two_clusters", 1, 8, 1100, false, false);
  // The window starts in the second page of a tile: the first is poison.
  AttnDesc windowed = base;
  windowed.layout.page_size = 8;
  windowed.window = 21;
  problems.push_back(
      {"page_8_window", {.desc = windowed, .q_lens = {1, 2, 4, 1}, .kv_lens = {50, 45, 90, 13}, .seed = 304}});
  // Up to 30 rows an item.
  ProblemSpec wide = {.desc = base, .q_lens = {8, 1, 10, 3}, .kv_lens = {700, 33, 1200, 5}, .seed = 305};
  problems.push_back({"wide_verify", wide});
  wide.desc.exact_pages = true;
  wide.desc.conditioning = KeyConditioning::kFull;
  problems.push_back({"wide_verify_edges", wide});
  AttnDesc edges = base;
  edges.exact_pages = true;
  edges.conditioning = KeyConditioning::kFull;
  problems.push_back({"long_edges", {.desc = edges, .q_lens = {1, 4}, .kv_lens = {5000, 900}, .seed = 303}});
  return problems;
}

// Prompts and chunks over a prefix, beside what the CPU's list has.
std::vector<NamedSpec> prompt_problems(const AttnDesc& base) {
  std::vector<NamedSpec> problems;
  const auto add = [&](std::string name, auto change, std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens) {
    AttnDesc desc = base;
    change(desc);
    const auto seed = static_cast<uint32_t>(320 + problems.size());
    problems.push_back(
        {std::move(name), {.desc = desc, .q_lens = std::move(q_lens), .kv_lens = std::move(kv_lens), .seed = seed}});
  };
  const auto plain = [](AttnDesc&) {};
  add("prompts", plain, {257, 0, 130, 64, 1}, {257, 0, 130, 64, 1});
  add("chunks", plain, {100, 64, 17}, {1100, 70, 900});
  add("chunk_of_long_prefix", plain, {33}, {6000});
  add("chunks_window_whole_items", [](AttnDesc& d) { d.window = 70, d.batch_invariant = true; }, {150, 60}, {700, 61});
  add("chunks_edges",
      [](AttnDesc& d) {
        d.exact_pages = true;
        d.conditioning = KeyConditioning::kFull;
        d.sinks = true;
      },
      {80, 48}, {600, 48});
  add("one_kv_head_of_seven", [](AttnDesc& d) { d.num_q_heads = 7, d.layout.num_kv_heads = 1; }, {61}, {200});
  add("head_of_each", [](AttnDesc& d) { d.num_q_heads = d.layout.num_kv_heads; }, {140, 3}, {140, 90});
  add("chunks_context_parallel", [](AttnDesc& d) { d.context_parallel = {.rank = 1, .size = 2, .interleave = 16}; },
      {90, 20}, {400, 20});
  return problems;
}

const KernelRow* find_row(AttnOp op, const AttnDesc& desc) {
  static const DeviceInfo hopper = *describe_compute_capability(90);
  const KernelTable table{.rows = kernel_table().rows, .has_cuda = true};
  const Result<const KernelRow*> row = select_kernel(op, hopper, desc, table);
  return row ? *row : nullptr;
}

/// The problem as it is, and where that takes the prefill kernel for its rows, with fewer of them once more.
void add_problem(std::vector<NamedSpec>& problems, std::set<std::string>& names, const std::string& prefix,
                 const NamedSpec& named) {
  const AttnDesc& desc = named.spec.desc;
  if (!validate_attention(desc, AttnLimits{}).ok()) return;
  const KernelRow* decode = find_row(AttnOp::kDecode, desc);
  if (decode == nullptr || find_row(AttnOp::kPrefill, desc) == nullptr) return;
  NamedSpec problem = named;
  problem.name = fmt::format("{}_{}", prefix, named.name);
  if (!names.insert(problem.name).second) return;
  problems.push_back(problem);
  const int32_t group = desc.num_q_heads / desc.layout.num_kv_heads;
  const int32_t most = decode->max_rows / group;
  if (most < 1 || *std::ranges::max_element(problem.spec.q_lens) <= most) return;
  problem.name += "_few_rows";
  for (int32_t& q_len : problem.spec.q_lens) q_len = std::min(q_len, most);
  problems.push_back(problem);
}

/// The problem lists on every format and head dim of the kernel table, as far as its rows take them.
std::vector<NamedSpec> device_problems() {
  std::vector<NamedSpec> problems;
  std::set<std::string> names;
  const auto add_all = [&](const std::string& prefix, const std::vector<NamedSpec>& list) {
    for (const NamedSpec& named : list) add_problem(problems, names, prefix, named);
  };
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    for (const int32_t head_dim : {64, 128}) {
      const AttnDesc base = device_desc(format, head_dim);
      for (const auto& list : {layout_problems(base), shape_problems(base), option_problems(base), size_problems(base),
                               prompt_problems(base)})
        add_all(fmt::format("{}_{}", to_string(format), head_dim), list);
    }
  }
  // Formats that differ only in how a tile is expanded.
  AttnDesc linear = device_desc(KvFormat::kNvfp4, 128);
  linear.layout.code_order = CodeOrder::kLinear;
  linear.layout.scale_order = ScaleOrder::kLinear;
  const std::pair<std::string, AttnDesc> others[] = {
      {"f16_128", device_desc(KvFormat::kF16, 128)},
      {"e5m2_64", device_desc(KvFormat::kE5m2, 64)},
      {"k_e4m3_v_nvfp4_128", device_desc(KvFormat::kE4m3, KvFormat::kNvfp4, 128)},
      {"nvfp4_linear_128", linear},
  };
  for (const auto& [prefix, base] : others) {
    add_all(prefix, layout_problems(base));
    add_all(prefix, prompt_problems(base));
  }
  for (const int32_t head_dim : {80, 96, 192, 256, 512}) {
    for (const KvFormat format : {KvFormat::kBf16, KvFormat::kF16, KvFormat::kE4m3, KvFormat::kNvfp4})
      add_all(fmt::format("{}_{}", to_string(format), head_dim), prompt_problems(device_desc(format, head_dim)));
  }
  return problems;
}

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
  const AttnDesc desc = device_desc(GetParam(), 128);
  Problem problem({.desc = desc, .q_lens = {1, 4, 1, 0, 2}, .kv_lens = {3000, 700, 17, 0, 1500}, .seed = 400});
  DeviceProblem device(problem);
  ASSERT_TRUE(device.plan().ok());
  ASSERT_NO_FATAL_FAILURE(expect_repeats(device, 200));
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
  const AttnDesc desc = device_desc(GetParam(), 128);
  for (const std::vector<int32_t>& q_lens : {std::vector<int32_t>{1, 3}, std::vector<int32_t>{70, 3}})
    expect_same_in_a_big_pool(desc, q_lens);
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
