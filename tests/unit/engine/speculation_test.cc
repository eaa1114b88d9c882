#include "engine/speculation/draft_depth.h"
#include "engine/speculation/ngram_drafter.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/engine/engine.h"

namespace kvant::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> continuation(const std::vector<int32_t>& tokens, int32_t count) {
  const auto found = look_up_continuation(tokens, count);
  return {found.begin(), found.end()};
}

TEST(NgramDrafter, ContinuesTheLatestOccurrenceOfTheLongestEnd) {
  EXPECT_THAT(continuation({1, 2, 3, 4, 5, 1, 2}, 2), ElementsAre(3, 4));
  EXPECT_THAT(continuation({1, 2, 3, 9, 1, 2, 4, 9, 1, 2}, 1), ElementsAre(4)) << "the latest";
  EXPECT_THAT(continuation({9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2}, 1), ElementsAre(3)) << "the longest";
  EXPECT_THAT(continuation({7, 7, 7, 7}, 8), ElementsAre(7)) << "an occurrence may overlap the end";
}

TEST(NgramDrafter, DraftsNothingWithoutARepeatedPair) {
  EXPECT_THAT(continuation({1, 2, 3, 2}, 4), IsEmpty());
  EXPECT_THAT(continuation({1, 1}, 4), IsEmpty());
  EXPECT_THAT(continuation({1}, 4), IsEmpty());
}

TEST(DraftDepth, FallsWhenDraftsAreRefusedAndRisesWhenTheyAreTaken) {
  DraftDepth depth(4);
  EXPECT_EQ(depth.next(), 4);
  for (int i = 0; i < 4; ++i) depth.record(depth.next(), 0);
  int tries = 0;
  for (int i = 0; i < 32; ++i) tries += depth.next();
  EXPECT_EQ(tries, 2) << "one token now and then";
  depth.record(1, 1);
  EXPECT_GT(depth.next(), 1);
  for (int i = 0; i < 4; ++i) depth.record(depth.next(), depth.next());
  EXPECT_EQ(depth.next(), 4);
  depth.record(4, 2);
  EXPECT_EQ(depth.next(), 4) << "half of them is worth it";
}

TEST(Speculation, IsParsedOrRefusedByName) {
  EXPECT_EQ(parse_speculation("none").value().kind, Speculation::Kind::kNone);
  const Speculation ngram = parse_speculation("ngram:4").value();
  EXPECT_EQ(ngram.kind, Speculation::Kind::kNgram);
  EXPECT_EQ(ngram.max_drafts, 4);
  const Speculation draft = parse_speculation("draft:a:b.gguf:3").value();
  EXPECT_EQ(draft.kind, Speculation::Kind::kDraft);
  EXPECT_EQ(draft.draft_model, "a:b.gguf");
  for (const char* bad : {"", "ngram", "ngram:", "ngram:0", "ngram:65", "ngram:4x", "draft::4", "draft:4", "tree:4"})
    EXPECT_FALSE(parse_speculation(bad)) << bad;
}

}  // namespace
}  // namespace kvant::engine
