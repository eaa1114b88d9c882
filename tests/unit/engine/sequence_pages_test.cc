#include "engine/cache/sequence_pages.h"

#include <vector>

#include <gtest/gtest.h>

#include "kvant/attn/kv_cache.h"

namespace kvant::engine {
namespace {

using Extent = SequencePages::Extent;

/// Drives one sequence as the cache does.
class Driver {
 public:
  explicit Driver(attn::ExactEdges edges, int32_t max_tokens = 2048)
      : pages({.edges = edges, .page_size = 16, .max_sequences = 2, .max_tokens = max_tokens}) {}

  /// Returns how many pages aged.
  size_t step(int32_t tokens, bool decode) {
    const Extent extent{.length = length,
                        .new_length = length + tokens,
                        .committed = decode ? length + 1 : attn::EdgePlan::prefill_committed(length),
                        .grid_point = attn::EdgePlan::prefill_committed(decode ? grid_end : length + tokens)};
    const SequencePages::Need need = pages.need(0, extent);
    const int32_t base_free = pages.base().num_free();
    const int32_t exact_free = pages.exact().num_free();
    std::vector<attn::PageAge> ages;
    if (!pages.ages_after_append()) pages.age(0, extent, ages);
    pages.add_pages(0, extent);
    if (pages.ages_after_append()) pages.age(0, extent, ages);
    EXPECT_EQ(base_free - pages.base().num_free(), need.base_pages);
    EXPECT_EQ(exact_free - pages.exact().num_free(), need.exact_pages);
    pages.end_step();
    length += tokens;
    if (!decode) grid_end = length;
    return ages.size();
  }

  /// 'e' exact, 'b' base, one letter a page.
  std::string kinds() const {
    std::string out;
    for (const int32_t entry : pages.table(0)) {
      if (entry == attn::kNoPage) break;
      out += attn::is_exact_page(entry) ? 'e' : 'b';
    }
    return out;
  }

  SequencePages pages;
  int32_t length = 0;
  int32_t grid_end = 0;
};

std::string repeat(char letter, int count) { return std::string(static_cast<size_t>(count), letter); }

TEST(SequencePages, AgesAPageWhenItsLastTokenLeavesTheTail) {
  Driver driver({.head = 16, .tail = 32});
  driver.step(1, true);
  // Page 1 ends with token 31: it ages when 31 + 32 + 1 = 64 tokens are committed.
  for (int32_t length = 1; length < 63; ++length) EXPECT_EQ(driver.step(1, true), 0u) << length;
  EXPECT_EQ(driver.kinds(), "eeee");
  EXPECT_EQ(driver.step(1, true), 1u);
  EXPECT_EQ(driver.kinds(), "ebee");
  EXPECT_EQ(driver.pages.exact().num_used(), 3);
  EXPECT_EQ(driver.pages.base().num_used(), 1);
}

TEST(SequencePages, AgesPromptsByTheStartOfTheirGridCell) {
  Driver driver({.head = 16, .tail = 32});
  driver.step(256, false);
  EXPECT_EQ(driver.kinds(), repeat('e', 16));
  driver.step(20, false);
  // Pages up to 256 - 32 have aged.
  EXPECT_EQ(driver.kinds(), "e" + repeat('b', 13) + repeat('e', 4));
  EXPECT_EQ(driver.step(100, false), 0u) << "the same cell";
}

TEST(SequencePages, AgesAWholeCacheWithoutATail) {
  Driver driver({.head = 16, .tail = 0});
  for (int32_t i = 0; i < 47; ++i) driver.step(1, true);
  EXPECT_EQ(driver.kinds(), "ebe");
  EXPECT_EQ(driver.step(1, true), 1u) << "the step that fills a page ages it";
  EXPECT_EQ(driver.kinds(), "ebb");
}

TEST(SequencePages, RoundsTheHeadUpToWholePages) {
  Driver driver({.head = 20, .tail = 16});
  for (int32_t i = 0; i < 64; ++i) driver.step(1, true);
  EXPECT_EQ(driver.kinds(), "eebe");
}

TEST(SequencePages, RestoresTheTailBeforeTheLastGridPointOfThePrompt) {
  Driver driver({.head = 16, .tail = 32});
  driver.step(256, false);
  driver.step(44, false);
  for (int32_t i = 0; i < 100; ++i) driver.step(1, true);
  EXPECT_TRUE(driver.pages.can_restore(0, 256));
  driver.pages.restore(0, 256);
  // As a fresh run holds it before cell 1 ages anything: exact from 256 - 32 on, aged before.
  EXPECT_EQ(driver.kinds(), "e" + repeat('b', 13) + "ee");
  driver.pages.clear(0);
  EXPECT_EQ(driver.pages.exact().num_used(), 0);
  EXPECT_EQ(driver.pages.base().num_used(), 0);
}

TEST(SequencePages, CannotRestoreAnEarlierGridPoint) {
  Driver driver({.head = 16, .tail = 32});
  for (int32_t i = 0; i < 3; ++i) driver.step(256, false);
  EXPECT_TRUE(driver.pages.can_restore(0, 768));
  EXPECT_FALSE(driver.pages.can_restore(0, 512) && driver.pages.can_restore(0, 256));
  EXPECT_TRUE(driver.pages.can_restore(0, 0));
  driver.pages.restore(0, 0);
  EXPECT_EQ(driver.pages.exact().num_used(), 0);
  EXPECT_EQ(driver.pages.base().num_used(), 0);
}

TEST(SequencePages, CutsDraftsOff) {
  Driver driver({.head = 16, .tail = 32});
  driver.step(100, false);
  driver.step(30, true);
  driver.pages.cut(0, 101);
  EXPECT_EQ(driver.kinds().size(), 7u);
}

TEST(SequencePages, NeverRunsOutOfExactPages) {
  for (const attn::ExactEdges edges : {attn::ExactEdges{16, 32}, {0, 32}, {16, 0}, {100, 300}, {0, 1}}) {
    Driver driver(edges);
    for (int32_t round = 0; round < 3; ++round) {
      for (int32_t i = 0; i < 5; ++i) driver.step(256, false);
      for (int32_t i = 0; i < 300; ++i) driver.step(1, true);
      driver.pages.clear(0);
      driver.length = driver.grid_end = 0;
    }
    EXPECT_EQ(driver.pages.exact().num_used(), 0);
  }
}

TEST(SequencePages, UsesBasePagesAloneWithoutEdges) {
  Driver driver({});
  driver.step(300, false);
  driver.step(1, true);
  EXPECT_EQ(driver.kinds(), repeat('b', 19));
  EXPECT_EQ(driver.pages.exact().num_pages(), 0);
}

}  // namespace
}  // namespace kvant::engine
