#include "kvant/attn/shared_runs.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvant::attn {
namespace {

using ::testing::HasSubstr;

/// Requests of one row each, with pages of their own but for what `share` says.
struct Batch {
  std::vector<int32_t> q_offsets, kv_lens, table;
  int64_t stride;
  int32_t page_size = 16;
  ContextParallel context_parallel;

  Batch(size_t count, int32_t length, int64_t stride_pages)
      : q_offsets(count + 1),
        kv_lens(count, length),
        table(count * static_cast<size_t>(stride_pages)),
        stride(stride_pages) {
    std::iota(q_offsets.begin(), q_offsets.end(), 0);
    std::iota(table.begin(), table.end(), 100);
  }
  int32_t& entry(size_t r, int64_t page) { return table[r * static_cast<size_t>(stride) + static_cast<size_t>(page)]; }
  void share(size_t first, size_t count, int64_t pages) {
    for (size_t r = first + 1; r < first + count; ++r)
      for (int64_t page = 0; page < pages; ++page) entry(r, page) = entry(first, page);
  }
  std::vector<SharedRun> find(SharedRunRules rules = {.min_requests = 2, .min_saved_keys = 1}) const {
    std::vector<SharedRun> runs(kv_lens.size() + 1, SharedRun{7, 7, 7});
    const Status status = find_shared_runs(view(), rules, runs);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return runs;
  }
  SharedRunBatch view() const {
    return {.q_offsets = q_offsets,
            .kv_lens = kv_lens,
            .page_table = table,
            .page_table_stride = stride,
            .page_size = page_size,
            .context_parallel = context_parallel};
  }
};

/// `count` requests of a run and the counting entry before them.
std::vector<SharedRun> one_run(int32_t first, int32_t count, int32_t pages, size_t num_requests) {
  std::vector<SharedRun> runs(num_requests + 1);
  runs[0].num_requests = count;
  for (int32_t r = first; r < first + count; ++r) runs[static_cast<size_t>(1 + r)] = {first, count, pages};
  return runs;
}

TEST(SharedRuns, FindsNothingInPagesOfTheirOwn) { EXPECT_EQ(Batch(5, 300, 20).find(), one_run(0, 0, 0, 5)); }

TEST(SharedRuns, FindsNothingInNoRequests) { EXPECT_EQ(Batch(0, 0, 4).find(), one_run(0, 0, 0, 0)); }

TEST(SharedRuns, FindsTheCommonPagesOfNeighbours) {
  Batch batch(6, 300, 20);
  batch.share(1, 4, 7);
  EXPECT_EQ(batch.find(), one_run(1, 4, 7, 6));
}

TEST(SharedRuns, LeavesEachRequestKeysOfItsOwnThatItsRowsDoNotAllSee) {
  Batch batch(3, 300, 20);
  batch.share(0, 3, 20);
  batch.kv_lens = {300, 96, 300};
  EXPECT_EQ(batch.find(), one_run(0, 3, 5, 3)) << "96 keys: the last page holds the row's own";
  batch.q_offsets = {0, 1, 2, 2 + 250};
  EXPECT_EQ(batch.find(), one_run(0, 3, 3, 3)) << "the first of 250 rows sees 51 keys";
}

TEST(SharedRuns, LeaveOutRequestsWithoutRows) {
  Batch batch(4, 300, 20);
  batch.share(0, 4, 10);
  batch.q_offsets = {0, 1, 1, 2, 3};
  EXPECT_EQ(batch.find(), one_run(2, 2, 10, 4));
}

TEST(SharedRuns, AreWholeTiles) {
  Batch batch(2, 300, 40);
  batch.page_size = 8;
  batch.share(0, 2, 5);
  EXPECT_EQ(batch.find(), one_run(0, 2, 4, 2));
}

TEST(SharedRuns, AreNotWorthMuchWhereFewShareLittle) {
  Batch batch(4, 300, 20);
  batch.share(0, 3, 10);
  EXPECT_EQ(batch.find({.min_requests = 4, .min_saved_keys = 1}), one_run(0, 0, 0, 4));
  EXPECT_EQ(batch.find({.min_requests = 3, .min_saved_keys = 321}), one_run(0, 0, 0, 4));
  EXPECT_EQ(batch.find({.min_requests = 3, .min_saved_keys = 320}), one_run(0, 3, 10, 4));
}

TEST(SharedRuns, PreferWhatSavesMost) {
  // All share two pages; halves share ten.
  Batch batch(8, 300, 20);
  batch.share(0, 8, 2);
  batch.share(0, 4, 10);
  batch.share(4, 4, 10);
  const std::vector<SharedRun> runs = batch.find();
  EXPECT_EQ(runs[0].num_requests, 8);
  for (int32_t r = 0; r < 8; ++r) EXPECT_EQ(runs[static_cast<size_t>(1 + r)], (SharedRun{r / 4 * 4, 4, 10}));
  // All share eight pages, two neighbours twelve.
  Batch flat(8, 300, 20);
  flat.share(0, 8, 8);
  flat.share(2, 2, 12);
  EXPECT_EQ(flat.find(), one_run(0, 8, 8, 8));
}

TEST(SharedRuns, CountARanksKeysUnderContextParallelism) {
  Batch batch(2, 320, 20);
  batch.context_parallel = {.rank = 1, .size = 2, .interleave = 16};
  batch.share(0, 2, 20);
  EXPECT_EQ(batch.find(), one_run(0, 2, 9, 2)) << "160 keys are the rank's; the last page holds the row's own";
  batch.kv_lens = {330, 330};
  EXPECT_EQ(batch.find(), one_run(0, 2, 9, 2)) << "the other rank's keys give this one none of its own";
}

TEST(SharedRuns, RefuseSizesThatDoNotFit) {
  const Batch batch(3, 300, 20);
  std::vector<SharedRun> runs(3);
  EXPECT_THAT(find_shared_runs(batch.view(), {}, runs).message(), HasSubstr("room for 3 runs of 3 requests"));
  runs.resize(4);
  SharedRunBatch view = batch.view();
  view.page_table = view.page_table.first(59);
  EXPECT_THAT(find_shared_runs(view, {}, runs).message(), HasSubstr("59 entries"));
  view = batch.view();
  view.q_offsets = view.q_offsets.first(3);
  EXPECT_THAT(find_shared_runs(view, {}, runs).message(), HasSubstr("3 query offsets for 3 requests"));
}

}  // namespace
}  // namespace kvant::attn
