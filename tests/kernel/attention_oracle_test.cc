#include <gtest/gtest.h>

#include "attn/reference/attention_reference.h"
#include "support/compare.h"
#include "support/problem_list.h"

namespace kvant::attn::test {
namespace {

using kvant::test::attention_tolerance;
using kvant::test::close_to;
using kvant::test::lse_tolerance;

constexpr KvFormat kAllFormats[] = {KvFormat::kF32,  KvFormat::kF16,  KvFormat::kBf16,
                                    KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4};

std::vector<NamedSpec> format_problems() {
  std::vector<NamedSpec> problems;
  uint32_t seed = 1;
  for (const KvFormat k : kAllFormats) {
    for (const KvFormat v : kAllFormats) {
      AttnDesc desc = simple_desc(6, 2, 64);
      desc.layout.k_format = k;
      desc.layout.v_format = v;
      ProblemSpec spec = mixed_batch(desc);
      spec.seed = seed++;
      problems.push_back({fmt::format("{}_{}", to_string(k), to_string(v)), spec});
    }
  }
  return problems;
}

/// The base of layout and option problems.
AttnDesc nvfp4_desc() {
  AttnDesc desc = simple_desc(6, 2, 64);
  desc.layout.k_format = desc.layout.v_format = KvFormat::kNvfp4;
  return desc;
}

AttnDesc mixed_desc() {
  AttnDesc desc = simple_desc(6, 2, 32);
  desc.layout.k_format = KvFormat::kE4m3;
  desc.layout.v_format = KvFormat::kNvfp4;
  return desc;
}

class AttentionOracle : public ::testing::TestWithParam<NamedSpec> {};

TEST_P(AttentionOracle, MatchesOnEveryInstructionSet) {
  Problem problem(GetParam().spec);
  const auto expected = reference::attention(problem.desc(), problem.args());
  for_each_simd_target([&](const char* target) {
    for (const int num_threads : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} with {} threads", target, num_threads));
      const Status status = problem.run(num_threads);
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_TRUE(close_to(problem.out(), expected.out, attention_tolerance(problem.desc().out_dtype)));
      EXPECT_TRUE(close_to(problem.lse(), expected.lse, lse_tolerance()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, AttentionOracle, ::testing::ValuesIn(format_problems()), kProblemName);
INSTANTIATE_TEST_SUITE_P(Layouts, AttentionOracle, ::testing::ValuesIn(layout_problems(nvfp4_desc())), kProblemName);
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionOracle, ::testing::ValuesIn(shape_problems(mixed_desc())), kProblemName);
INSTANTIATE_TEST_SUITE_P(Options, AttentionOracle, ::testing::ValuesIn(option_problems(nvfp4_desc())), kProblemName);

}  // namespace
}  // namespace kvant::attn::test
