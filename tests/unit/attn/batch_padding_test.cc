#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/batch.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn {
namespace {

using Values = std::vector<int32_t>;
using ::testing::HasSubstr;

TEST(GraphTokenCounts, RoundsAskedCountsUpToWholeRequests) {
  EXPECT_EQ(*graph_token_counts(Values{5, 7, 10}, 4, 8), (Values{8, 12}));
  EXPECT_EQ(*graph_token_counts(Values{1, 2, 4, 8, 16, 24}, 3, 8), (Values{3, 6, 9, 18, 24}));
}

TEST(GraphTokenCounts, HoldsOneRequestForEveryWidth) {
  for (int32_t drafts = 1; drafts <= 7; ++drafts) {
    EXPECT_EQ(*graph_token_counts({}, 1 + drafts, 1), (Values{1 + drafts}));
    EXPECT_EQ(*graph_token_counts(Values{1, 2, 4, 8}, 1 + drafts, 1), (Values{1 + drafts}));
  }
}

TEST(GraphTokenCounts, CountsRequestsAndNotTokensForTheLargest) {
  EXPECT_EQ(*graph_token_counts({}, 4, 6), (Values{4, 8, 16, 24}));
}

TEST(GraphTokenCounts, RefusesWhatMakesNoGraph) {
  EXPECT_THAT(graph_token_counts({}, 0, 1).error().message(), HasSubstr("width 0"));
  EXPECT_THAT(graph_token_counts({}, 1, 0).error().message(), HasSubstr("max_requests 0"));
  EXPECT_THAT(graph_token_counts(Values{0}, 1, 1).error().message(), HasSubstr("size 0"));
  EXPECT_THAT(graph_token_counts({}, 65536, 65536).error().message(), HasSubstr("too many"));
}

struct Tables {
  Values q_offsets;
  Values kv_lens;
  Values page_table;
  BatchTables view(int64_t stride) { return {q_offsets, kv_lens, page_table, stride}; }
};

TEST(PadRequests, ClearsWhatALargerBatchLeftBehind) {
  Tables tables{{0, 3, 6, 9, 12}, {40, 50, 60, 70}, {1, 2, 3, 4, 5, 6, 7, 8}};
  ASSERT_TRUE(pad_requests(tables.view(2), 2).ok());
  EXPECT_EQ(tables.q_offsets, (Values{0, 3, 6, 6, 6}));
  EXPECT_EQ(tables.kv_lens, (Values{40, 50, 0, 0}));
  EXPECT_EQ(tables.page_table, (Values{1, 2, 3, 4, kNoPage, kNoPage, kNoPage, kNoPage}));
}

TEST(PadRequests, FillsEveryRowOfThePaddedSize) {
  Tables tables{Values(113, 7), Values(112, 7), Values(112, 7)};
  for (int32_t r = 0; r <= 100; ++r) tables.q_offsets[static_cast<size_t>(r)] = r;
  ASSERT_TRUE(pad_requests(tables.view(1), 100).ok());
  for (size_t r = 0; r < 112; ++r) {
    EXPECT_EQ(tables.q_offsets[r + 1], r < 100 ? static_cast<int32_t>(r) + 1 : 100);
    EXPECT_EQ(tables.kv_lens[r], r < 100 ? 7 : 0);
    EXPECT_EQ(tables.page_table[r], r < 100 ? 7 : kNoPage);
  }
}

TEST(PadRequests, MakesAnEmptyBatch) {
  Tables tables{{5, 6}, {7}, {8}};
  ASSERT_TRUE(pad_requests(tables.view(1), 0).ok());
  EXPECT_EQ(tables.q_offsets, (Values{0, 0}));
  EXPECT_EQ(tables.kv_lens, (Values{0}));
}

TEST(PadRequests, RefusesTablesOfOtherSizes) {
  Tables tables{{0, 1, 2}, {1, 1}, {0, 0}};
  EXPECT_THAT(pad_requests(tables.view(1), 3).message(), HasSubstr("3 requests do not fit a batch padded to 2"));
  EXPECT_THAT(pad_requests(tables.view(2), 1).message(), HasSubstr("4 are needed"));
  tables.q_offsets.pop_back();
  EXPECT_THAT(pad_requests(tables.view(1), 1).message(), HasSubstr("3 are needed"));
}

// Five real requests in a graph of eight, three draft steps: the padding must not grow a key.
TEST(AdvanceKvLens, LeavesPaddingAtZero) {
  const Values q_offsets{0, 1, 2, 3, 4, 5, 5, 5, 5};
  Values kv_lens{10, 11, 12, 13, 14, 0, 0, 0};
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(advance_kv_lens(q_offsets, kv_lens, 1).ok());
  EXPECT_EQ(kv_lens, (Values{13, 14, 15, 16, 17, 0, 0, 0}));
  EXPECT_THAT(advance_kv_lens(Values{0, 1}, kv_lens, 1).message(), HasSubstr("9 are needed"));
}

TEST(ExpandBlockTable, GivesEveryBlockItsPages) {
  EXPECT_EQ(*pages_per_block(528, 16), 33);
  EXPECT_EQ(*pages_per_block(2848, 32), 89);
  Values pages(6);
  ASSERT_TRUE(expand_block_table(Values{4, kNoPage, kExactPageBit | 1}, 2, pages).ok());
  EXPECT_EQ(pages, (Values{8, 9, kNoPage, kNoPage, kExactPageBit | 2, kExactPageBit | 3}));
}

TEST(ExpandBlockTable, RefusesFractionsAndIdsOutOfRange) {
  EXPECT_THAT(pages_per_block(528, 32).error().message(), HasSubstr("528"));
  EXPECT_THAT(pages_per_block(8, 16).error().message(), HasSubstr("pages of 16"));
  EXPECT_THAT(pages_per_block(16, 0).error().message(), HasSubstr("pages of 0"));
  Values pages(2);
  EXPECT_THAT(expand_block_table(Values{1 << 29}, 2, pages).message(), HasSubstr("beyond the last page id"));
  EXPECT_THAT(expand_block_table(Values{1}, 3, pages).message(), HasSubstr("3 are needed"));
  EXPECT_TRUE(expand_block_table(Values{(1 << 29) - 1}, 2, pages).ok());
  EXPECT_EQ(pages[1], kExactPageBit - 1);
}

}  // namespace
}  // namespace kvant::attn
