#include "kvant/attn/edges.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace kvant::attn {
namespace {

TEST(EdgePlan, RoundsTheHeadUpToWholePages) {
  EXPECT_EQ((EdgePlan{{0, 32}, 16}.head_pages()), 0);
  EXPECT_EQ((EdgePlan{{1, 32}, 16}.head_pages()), 1);
  EXPECT_EQ((EdgePlan{{16, 32}, 16}.head_pages()), 1);
  EXPECT_EQ((EdgePlan{{17, 32}, 16}.head_pages()), 2);
  EXPECT_EQ((EdgePlan{{16, 32}, 1}.head_pages()), 16);
}

/// The definition, page by page: a page outside the head whose last token is t has aged when C - 1 - t >= tail.
TEST(EdgePlan, AgesExactlyThePagesOfTheDefinition) {
  for (const int32_t page_size : {1, 8, 16, 32}) {
    for (const int32_t head : {0, 1, 16, 40}) {
      for (const int32_t tail : {0, 1, 15, 16, 32, 33}) {
        const EdgePlan plan{{head, tail}, page_size};
        for (int32_t committed = 0; committed <= 200; ++committed) {
          for (int32_t page = 0; page <= 200 / page_size; ++page) {
            const int32_t last_token = (page + 1) * page_size - 1;
            const bool aged = page >= plan.head_pages() && committed - 1 - last_token >= tail;
            ASSERT_EQ(page >= plan.head_pages() && page < plan.aged_end(committed), aged)
                << "page size " << page_size << " head " << head << " tail " << tail << " C " << committed << " page "
                << page;
          }
        }
      }
    }
  }
}

TEST(EdgePlan, KeepsATailOfTailToTailPlusPageMinusOneTokens) {
  const EdgePlan plan{{16, 32}, 16};
  int32_t shortest = 1000, longest = 0;
  for (int32_t committed = 64; committed < 400; ++committed) {
    const int32_t tail = committed - plan.aged_end(committed) * 16;
    shortest = std::min(shortest, tail);
    longest = std::max(longest, tail);
  }
  EXPECT_EQ(shortest, 32);
  EXPECT_EQ(longest, 47);
}

TEST(EdgePlan, PrefillSeesTheStateAtTheStartOfItsGridCell) {
  EXPECT_EQ(EdgePlan::prefill_committed(0), 0);
  EXPECT_EQ(EdgePlan::prefill_committed(255), 0);
  EXPECT_EQ(EdgePlan::prefill_committed(256), 256);
  EXPECT_EQ(EdgePlan::prefill_committed(1000), 768);
}

}  // namespace
}  // namespace kvant::attn
