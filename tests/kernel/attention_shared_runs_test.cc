#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_problem.h"

namespace kvant::attn::test {
namespace {

/// The CPU reads shared pages once a request, and gives the same bits.
TEST(AttentionSharedRuns, AreIgnoredOnTheCpu) {
  AttnDesc desc = simple_desc(6, 2, 64);
  const ProblemSpec spec = {.desc = desc, .q_lens = {1, 1, 1}, .kv_lens = {60, 60, 60}, .seed = 9};
  Problem plain(spec), told(spec);
  for (Problem* problem : {&plain, &told}) {
    const auto stride = static_cast<int64_t>(problem->args().page_table_stride);
    std::vector<int32_t>& table = problem->page_table();
    for (const int64_t r : {1, 2}) std::copy_n(table.begin(), 2, table.begin() + r * stride);
  }
  told.shared_runs() = {{0, 3, 0}, {0, 3, 2}, {0, 3, 2}, {0, 3, 2}};
  ASSERT_TRUE(plain.run().ok());
  ASSERT_TRUE(told.run().ok());
  EXPECT_EQ(told.out(), plain.out());
  EXPECT_EQ(told.lse(), plain.lse());
}

}  // namespace
}  // namespace kvant::attn::test
