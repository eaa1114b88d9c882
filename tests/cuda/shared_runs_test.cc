#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attn/reference/attention_reference.h"
#include "kvant/attn/shared_runs.h"
#include "support/captured_run.h"
#include "support/compare.h"
#include "support/device_problem.h"
#include "support/problem_list.h"

namespace kvant::attn::test {
namespace {

AttnDesc device_desc(KvFormat format) {
  AttnDesc desc = simple_desc(8, 2, 128);
  store_for_device(desc, format, format);
  return desc;
}

struct Shared {
  size_t first, count;
  int32_t pages;
};

/// A problem whose requests name others' pages.
struct SharedSpec {
  std::string name;
  ProblemSpec spec;
  std::vector<Shared> shared;
  bool uses_runs = true;  ///< Whether the launch that shares pages takes it.

  friend void PrintTo(const SharedSpec& spec, std::ostream* out) { *out << spec.name; }
};

void share_pages(Problem& problem, const std::vector<Shared>& shared) {
  const auto stride = static_cast<size_t>(problem.args().page_table_stride);
  std::vector<int32_t>& table = problem.page_table();
  for (const Shared& s : shared)
    for (size_t r = s.first + 1; r < s.first + s.count; ++r)
      std::copy_n(table.begin() + static_cast<int64_t>(s.first * stride), s.pages,
                  table.begin() + static_cast<int64_t>(r * stride));
}

std::vector<SharedRun> runs_of(Problem& problem) {
  const AttnArgs args = problem.args();
  const auto requests = static_cast<size_t>(args.num_requests);
  std::vector<SharedRun> runs(requests + 1);
  const SharedRunBatch batch{.q_offsets = {args.q_offsets, requests + 1},
                             .kv_lens = {args.kv_lens, requests},
                             .page_table = problem.page_table(),
                             .page_table_stride = args.page_table_stride,
                             .page_size = problem.desc().layout.page_size,
                             .context_parallel = problem.desc().context_parallel};
  const Status status = find_shared_runs(batch, {.min_requests = 2, .min_saved_keys = 1}, runs);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return runs;
}

std::vector<SharedSpec> shared_problems() {
  std::vector<SharedSpec> problems;
  const auto add = [&](KvFormat format, const std::string& name, size_t count, int32_t q_len, int32_t length,
                       std::vector<Shared> shared, auto change, bool uses_runs = true) {
    ProblemSpec spec = {.desc = device_desc(format), .q_lens = {}, .kv_lens = {}};
    spec.seed = static_cast<uint32_t>(700 + problems.size());
    Random random(spec.seed);
    for (size_t r = 0; r < count; ++r) {
      spec.q_lens.push_back(q_len);
      spec.kv_lens.push_back(length + random.below(60));
    }
    change(spec);
    problems.push_back({fmt::format("{}_{}", to_string(format), name), spec, std::move(shared), uses_runs});
  };
  const auto plain = [](ProblemSpec&) {};
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    add(format, "all", 6, 1, 400, {{0, 6, 20}}, plain);
    add(format, "none", 6, 1, 400, {}, plain);
    // Rows of a request in two items of shared pages: 3 rows of each head, and 128 are not a multiple of that.
    add(format, "many", 60, 1, 150, {{3, 50, 7}}, [](ProblemSpec& s) { s.desc.num_q_heads = 6; });
    add(format, "long", 9, 1, 1400, {{0, 5, 80}, {6, 3, 65}}, plain);
    add(format, "nested", 16, 1, 300, {{0, 16, 3}, {0, 5, 15}, {8, 8, 12}}, plain);
    add(format, "verify", 9, 2, 450, {{1, 7, 22}}, plain);
    add(format, "ragged", 40, 1, 100, {{0, 40, 4}}, [](ProblemSpec& s) {
      for (size_t r = 0; r < s.q_lens.size(); ++r) s.q_lens[r] = static_cast<int32_t>(r % 3);
    });
    add(format, "sinks_cap", 6, 2, 400, {{0, 6, 20}}, [](ProblemSpec& s) {
      s.desc.sinks = true;
      s.desc.soft_cap = 5.0f;
    });
    add(format, "full_mask", 6, 2, 400, {{0, 6, 20}}, [](ProblemSpec& s) { s.desc.draft_mask = DraftMask::kFull; });
    add(format, "tree_mask", 6, 2, 400, {{0, 6, 20}}, [](ProblemSpec& s) { s.desc.draft_mask = DraftMask::kPacked; });
    add(format, "context_parallel", 8, 2, 700, {{0, 8, 15}},
        [](ProblemSpec& s) { s.desc.context_parallel = {.rank = 1, .size = 2, .interleave = 16}; });
    add(format, "page_32", 6, 1, 400, {{0, 6, 9}}, [](ProblemSpec& s) { s.desc.layout.page_size = 32; });
    add(format, "hnd_f32_out", 6, 1, 400, {{0, 6, 20}}, [](ProblemSpec& s) {
      s.desc.layout.order = TokenHeadOrder::kHnd;
      s.desc.q_dtype = DType::kF16;
    });
    add(format, "bf16_out", 6, 1, 400, {{0, 6, 20}}, [](ProblemSpec& s) { s.desc.out_dtype = DType::kBf16; });
    add(format, "alike", 200, 1, 100, {{0, 200, 4}}, [](ProblemSpec& s) {
      s.desc.num_q_heads = 16, s.desc.layout.num_kv_heads = 8;
      for (int32_t& length : s.kv_lens) length = 100;
    });
    // Teams and warps with more items than they can put off merging, and items of shared pages by the dozen.
    add(format, "many_short", 310, 1, 0, {{0, 300, 4}}, [](ProblemSpec& s) {
      s.desc.num_q_heads = 16, s.desc.layout.num_kv_heads = 8;
      for (size_t r = 0; r < s.kv_lens.size(); ++r) s.kv_lens[r] = r < 300 ? static_cast<int32_t>(65 + r % 15) : 6000;
    });
    // What falls to the plain kernels.
    add(
        format, "window", 6, 1, 400, {}, [](ProblemSpec& s) { s.desc.window = 50; }, false);
    add(format, "wide_verify", 6, 4, 400, {{0, 6, 20}}, plain, false);
    add(format, "few", 3, 1, 400, {{0, 3, 20}}, plain);
    if (format == KvFormat::kBf16) continue;
    add(format, "scales", 6, 1, 400, {{0, 6, 20}}, [](ProblemSpec& s) {
      s.k_scale = 0.02f;
      s.v_scale = 0.5f;
      s.scale_per_head = true;
    });
    for (const int32_t q_len : {1, 2})
      add(format, fmt::format("edges_{}", q_len), 8, q_len, 300, {{0, 8, 13}}, [](ProblemSpec& s) {
        s.desc.exact_pages = true;
        s.desc.conditioning = KeyConditioning::kFull;
        s.desc.sinks = true;
      });
  }
  return problems;
}

class SharedRunsOnDevice : public ::testing::TestWithParam<SharedSpec> {};

TEST_P(SharedRunsOnDevice, MatchTheOracle) {
  SKIP_WITHOUT_A_DEVICE();
  Problem problem(GetParam().spec);
  share_pages(problem, GetParam().shared);
  const std::vector<SharedRun> runs = runs_of(problem);
  // Entries below a window are poison, which neighbours have in common.
  if (problem.desc().window == 0) {
    EXPECT_EQ(runs[0].num_requests > 0, !GetParam().shared.empty());
  }
  const auto expected = reference::attention(problem.desc(), problem.args());
  DeviceProblem device(problem);
  device.share(runs);
  const Status planned = device.plan();
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  EXPECT_EQ(device.made_plan().launch().shared_kernel >= 0, GetParam().uses_runs);
  std::vector<std::byte> first;
  for (int repeat = 0; repeat < 4; ++repeat) {  // Later ones find the counters as the first left them.
    device.clear_results();
    const Status status = device.run();
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (repeat == 0) first = device.out_bytes();
    ASSERT_TRUE(device.out_bytes() == first) << "run " << repeat;
  }
  const double error = kvant::test::relative_error(device.out(), expected.out);
  RecordProperty("relative_error", fmt::format("{:.2e}", error));
  EXPECT_LE(error, kvant::test::tensor_core_relative_error());
  const bool conditioned = problem.desc().conditioning != KeyConditioning::kNone;
  EXPECT_TRUE(kvant::test::close_to(device.lse(), expected.lse, kvant::test::tensor_core_lse_tolerance(conditioned)));
}

INSTANTIATE_TEST_SUITE_P(Table, SharedRunsOnDevice, ::testing::ValuesIn(shared_problems()), kProblemName);

class SharedRunsFormat : public ::testing::TestWithParam<KvFormat> {
 protected:
  static ProblemSpec spec() {
    ProblemSpec spec = {.desc = device_desc(GetParam()), .q_lens = {}, .kv_lens = {}, .seed = 600};
    for (int32_t r = 0; r < 20; ++r) {
      spec.q_lens.push_back(1);
      spec.kv_lens.push_back(300 + 7 * r);
    }
    return spec;
  }
};

TEST_P(SharedRunsFormat, RepeatBitForBit) {
  SKIP_WITHOUT_A_DEVICE();
  Problem problem(spec());
  share_pages(problem, {{0, 10, 15}, {12, 7, 10}});
  DeviceProblem device(problem);
  device.share(runs_of(problem));
  ASSERT_TRUE(device.plan().ok());
  ASSERT_GE(device.made_plan().launch().shared_kernel, 0);
  ASSERT_NO_FATAL_FAILURE(expect_repeats(device, 200));
}

TEST_P(SharedRunsFormat, AreLeftToPlainKernelsWhereAPlanCanSaveLittle) {
  SKIP_WITHOUT_A_DEVICE();
  Problem problem(spec());
  share_pages(problem, {{0, 10, 15}, {12, 7, 10}});
  const auto expected = reference::attention(problem.desc(), problem.args());
  DeviceProblem device(problem);
  device.share(runs_of(problem));
  ASSERT_TRUE(device.plan(kMinSavedKeys).ok());
  EXPECT_LT(device.made_plan().launch().shared_kernel, 0);
  ASSERT_TRUE(device.run().ok());
  EXPECT_LE(kvant::test::relative_error(device.out(), expected.out), kvant::test::tensor_core_relative_error());
}

/// Captured while nothing is shared; replayed with runs, with others, and without again.
TEST_P(SharedRunsFormat, ReplayACapturedStepWithOtherRuns) {
  SKIP_WITHOUT_A_DEVICE();
  Problem problem(spec());
  share_pages(problem, {{0, 10, 15}, {12, 7, 10}});
  const auto expected = reference::attention(problem.desc(), problem.args());
  const std::vector<SharedRun> found = runs_of(problem), none(found.size());
  std::vector<SharedRun> fewer(found.size());  // A part of what could be shared is right as well.
  fewer[0].num_requests = 6;
  for (int32_t r = 4; r < 10; ++r) fewer[static_cast<size_t>(1 + r)] = {4, 6, 7};
  DeviceProblem device(problem);
  device.share(none);
  ASSERT_TRUE(device.plan().ok());
  CapturedRun captured(device);
  std::vector<std::vector<std::byte>> results;
  for (const std::vector<SharedRun>& runs : {none, found, fewer, none, found}) {
    device.share(runs);
    device.clear_results();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    captured.replay();
    EXPECT_LE(kvant::test::relative_error(device.out(), expected.out), kvant::test::tensor_core_relative_error());
    results.push_back(device.out_bytes());
  }
  EXPECT_TRUE(results[0] == results[3]);
  EXPECT_TRUE(results[1] == results[4]);
  EXPECT_FALSE(results[0] == results[1]) << "sums in another order";
}

INSTANTIATE_TEST_SUITE_P(Core, SharedRunsFormat, ::testing::Values(KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace kvant::attn::test
