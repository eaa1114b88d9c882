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
  explicit Driver(attn::ExactEdges edges, int32_t window = 0, int32_t max_tokens = 2048)
      : most(SequencePages::most_pages({.edges = edges, .page_size = 16}, window, max_tokens)),
        pages({.edges = edges,
               .page_size = 16,
               .max_sequences = 2,
               .max_tokens = max_tokens,
               .window = window,
               .base_pages = most.base_pages,
               .exact_pages = most.exact_pages}) {}

  /// Returns how many pages aged.
  size_t step(int32_t tokens, bool decode) {
    const Extent extent{.length = length,
                        .new_length = length + tokens,
                        .committed = decode ? length + 1 : attn::EdgePlan::prefill_committed(length)};
    const SequencePages::Need need = pages.need(0, extent);
    const int32_t base_free = pages.base().num_free();
    const int32_t exact_free = pages.exact().num_free();
    std::vector<attn::PageAge> ages;
    pages.drop_before_window(0, length);
    if (!pages.ages_after_append()) pages.age(0, extent, ages);
    pages.add_pages(0, extent);
    if (pages.ages_after_append()) pages.age(0, extent, ages);
    EXPECT_EQ(base_free - pages.base().num_free(), need.base_pages);
    EXPECT_EQ(exact_free - pages.exact().num_free(), need.exact_pages);
    pages.end_step();
    length += tokens;
    return ages.size();
  }

  /// 'e' exact, 'b' base, '-' let go; one letter a page.
  std::string kinds() const {
    std::string out;
    for (const int32_t entry : pages.table(0)) {
      out += entry == attn::kNoPage ? '-' : attn::is_exact_page(entry) ? 'e' : 'b';
    }
    return out.substr(0, out.find_last_not_of('-') + 1);
  }

  SequencePages::Need most;
  SequencePages pages;
  int32_t length = 0;
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

TEST(SequencePages, SharesPagesUntilTheirLastHolderLetsGo) {
  Driver driver({.head = 16, .tail = 32});
  driver.step(256, false);
  driver.step(1, false);
  // What a prompt finds at grid point 256: one head page, 13 aged ones, two of the tail.
  const std::vector<int32_t> prefix(driver.pages.table(0).begin(), driver.pages.table(0).begin() + 16);
  for (const int32_t entry : prefix) driver.pages.hold(entry);
  driver.pages.clear(0);
  EXPECT_EQ(driver.pages.base().num_used(), 13);
  EXPECT_EQ(driver.pages.exact().num_used(), 3);
  driver.pages.adopt(0, prefix, 14);
  driver.length = 256;
  EXPECT_EQ(driver.kinds(), "e" + repeat('b', 13) + "ee");
  driver.step(256, false);
  EXPECT_EQ(driver.step(1, false), 16u) << "the shared tail ages into pages of its own";
  EXPECT_TRUE(driver.pages.is_last_holder(prefix[15])) << "the other holder keeps it exact";
  driver.pages.clear(0);
  for (const int32_t entry : prefix) driver.pages.release(entry);
  EXPECT_EQ(driver.pages.exact().num_used(), 0);
  EXPECT_EQ(driver.pages.base().num_used(), 0);
}

TEST(SequencePages, LetsGoOfPagesBehindTheWindow) {
  Driver plain({}, 40);
  for (int32_t i = 0; i < 64; ++i) plain.step(1, true);
  // The query at position 63 sees keys from 24 on.
  EXPECT_EQ(plain.kinds(), "-bbb");
  plain.step(1, true);
  EXPECT_EQ(plain.kinds(), "-bbbb");
  Driver edges({.head = 16, .tail = 16}, 40);
  for (int32_t i = 0; i < 64; ++i) edges.step(1, true);
  EXPECT_EQ(edges.kinds(), "-bbe") << "the window wins over the head";
  edges.pages.clear(0);
  EXPECT_EQ(edges.pages.base().num_used() + edges.pages.exact().num_used(), 0);
}

TEST(SequencePages, CutsDraftsOff) {
  Driver driver({.head = 16, .tail = 32});
  driver.step(100, false);
  driver.step(30, true);
  driver.pages.cut(0, 101);
  EXPECT_EQ(driver.kinds().size(), 7u);
}

TEST(SequencePages, NeverNeedsMoreThanItSays) {
  for (const int32_t window : {0, 1, 40, 600})
    for (const attn::ExactEdges edges : {attn::ExactEdges{}, {16, 32}, {0, 32}, {16, 0}, {100, 300}, {0, 1}}) {
      Driver driver(edges, window);
      for (int32_t round = 0; round < 3; ++round) {
        for (int32_t i = 0; i < 5; ++i) driver.step(256, false);
        while (driver.length < 2048) driver.step(1, true);
        driver.pages.clear(0);
        driver.length = 0;
      }
      EXPECT_EQ(driver.pages.exact().num_used(), 0);
      EXPECT_EQ(driver.pages.base().num_used(), 0);
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
