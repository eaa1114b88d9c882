#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/batch.h"

namespace kvant::attn {
namespace {

using Offsets = std::vector<int32_t>;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  Offsets offsets;
  int64_t num_tokens;
  QueryShape ours;
  PeerQueryLengths xqa;
  PeerQueryLengths trtllm_gen;
};

constexpr QueryShape uniform(int32_t width, int32_t num_empty = 0) { return {width, true, num_empty}; }
constexpr QueryShape ragged(int32_t width, int32_t num_empty = 0) { return {width, false, num_empty}; }

std::vector<Case> all_cases() {
  return {
      {"single tokens", {0, 1, 2, 3}, 3, uniform(1), {1, {}, {}}, {1, {}, {}}},
      // The peers drop the offsets at width 1, so a padding request owns a row of its own and the caller must have one
      // for it. Here it owns none: the kernel gets the offsets.
      {"one padding request", {0, 1, 2, 2}, 2, ragged(1, 1), {1, {}, {}}, {1, {}, {}}},
      {"token count padded too", {0, 1, 2, 2, 2}, 4, uniform(1, 2), {1, {}, {}}, {1, {}, {}}},
      {"two drafts", {0, 3, 6}, 6, uniform(3), {3, {}, {}}, {3, {}, {}}},
      {"drafts and padding", {0, 3, 6, 6}, 6, ragged(3, 1), {3, {0, 3, 6, 6}, {3, 3, 0}}, {3, {0, 3, 6, 6}, {}}},
      // The padding request owns the three rows past the last offset.
      {"drafts, padded tokens", {0, 3, 6, 6}, 9, uniform(3, 1), {3, {}, {}}, {3, {0, 3, 6, 6}, {}}},
      {"empty in the middle", {0, 2, 2, 5}, 5, ragged(3, 1), {3, {0, 2, 2, 5}, {2, 0, 3}}, {3, {0, 2, 2, 5}, {}}},
      {"one request", {0, 4}, 4, uniform(4), {4, {}, {}}, {4, {}, {}}},
      {"one request in a graph of four",
       {0, 4, 4, 4, 4},
       4,
       ragged(4, 3),
       {4, {0, 4, 4, 4, 4}, {4, 0, 0, 0}},
       {4, {0, 4, 4, 4, 4}, {}}},
      {"the same, padded tokens", {0, 4, 4, 4, 4}, 16, uniform(4, 3), {4, {}, {}}, {4, {0, 4, 4, 4, 4}, {}}},
      // vLLM never asks trtllm-gen this one: its batch split sends the second request to prefill.
      {"unequal", {0, 1, 4}, 4, ragged(3), {3, {0, 1, 4}, {1, 3}}, {3, {0, 1, 4}, {}}},
      {"dummy run", {0, 0, 0}, 2, uniform(1, 2), {1, {}, {}}, {1, {}, {}}},
      {"no tokens", {0, 0, 0}, 0, uniform(1, 2), {1, {}, {}}, {1, {}, {}}},
      {"no requests", {0}, 0, uniform(1), {1, {}, {}}, {1, {}, {}}},
  };
}

TEST(QueryLengths, OurRuleGivesTheTable) {
  for (const Case& c : all_cases()) {
    const Result<QueryShape> shape = analyse_query_lengths(c.offsets, c.num_tokens);
    ASSERT_TRUE(shape) << c.name << ": " << shape.error().to_string();
    EXPECT_EQ(shape->width, c.ours.width) << c.name;
    EXPECT_EQ(shape->uniform, c.ours.uniform) << c.name;
    EXPECT_EQ(shape->num_empty, c.ours.num_empty) << c.name;
  }
}

TEST(QueryLengths, XqaRuleGivesTheTable) {
  for (const Case& c : all_cases()) EXPECT_EQ(xqa_query_lengths(c.offsets, c.num_tokens), c.xqa) << c.name;
}

TEST(QueryLengths, TrtllmGenRuleGivesTheTable) {
  for (const Case& c : all_cases())
    EXPECT_EQ(trtllm_gen_query_lengths(c.offsets, c.num_tokens), c.trtllm_gen) << c.name;
}

TEST(QueryLengths, TrtllmGenVarlenRuleAlwaysGivesOffsetsAndCutsTheWidth) {
  const Offsets offsets{0, 3, 6, 6};
  EXPECT_EQ(trtllm_gen_varlen_query_lengths(offsets, 6, 4), (PeerQueryLengths{3, offsets, {}}));
  EXPECT_EQ(trtllm_gen_varlen_query_lengths(offsets, 6, 2), (PeerQueryLengths{2, offsets, {}}));
}

// Uniform needs the exact product: equal lengths alone, or a matching total alone, are not enough.
TEST(QueryLengths, OurRuleNeedsEqualLengthsAndTheExactProduct) {
  EXPECT_FALSE(analyse_query_lengths(Offsets{0, 2, 4}, 6)->uniform);
  EXPECT_FALSE(analyse_query_lengths(Offsets{0, 1, 4}, 6)->uniform);
  EXPECT_TRUE(analyse_query_lengths(Offsets{0, 3, 6}, 6)->uniform);
}

TEST(QueryLengths, OurRuleKeepsEmptyRequestsAnywhere) {
  EXPECT_EQ(*analyse_query_lengths(Offsets{0, 4, 4, 7, 7, 7}, 7), ragged(4, 3));
}

TEST(QueryLengths, OurRuleRefusesBadOffsets) {
  EXPECT_THAT(analyse_query_lengths(Offsets{}, 0).error().message(), HasSubstr("empty"));
  EXPECT_THAT(analyse_query_lengths(Offsets{0, 3, 2}, 3).error().message(), HasSubstr("offset 2 is 2, less than 3"));
  EXPECT_THAT(analyse_query_lengths(Offsets{0, 3, 6}, 5).error().message(), HasSubstr("is 6, beyond the 5"));
}

struct BadOffsets {
  Offsets offsets;
  int64_t num_rows;
  int32_t max_query_len;
  std::vector<const char*> texts;
};

TEST(CheckQueryOffsets, NamesIndexAndValuesOfWhatIsWrong) {
  const BadOffsets cases[] = {
      {{}, 0, 4, {"empty"}},
      {{1, 2}, 2, 4, {"offset 0 is 1"}},
      {{0, 2, 1, 3}, 3, 4, {"offset 2 is 1", "less than 2"}},
      {{0, 2, 4}, 5, 4, {"index 2", "is 4", "5 query rows"}},
      {{0, 2, 4}, 3, 4, {"index 2", "is 4", "3 query rows"}},
      {{0, 1, 6}, 6, 4, {"request 1 has 5 query rows", "offsets 1 to 6", "limit 4", "max_query_len"}},
  };
  for (const BadOffsets& c : cases) {
    const Status status = check_query_offsets(c.offsets, c.num_rows, c.max_query_len);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const char* text : c.texts) EXPECT_THAT(status.message(), HasSubstr(text));
  }
}

TEST(CheckQueryOffsets, AcceptsEmptyRequestsAndTheLongestLength) {
  EXPECT_TRUE(check_query_offsets(Offsets{0, 4, 4, 7, 7, 7}, 7, 4).ok());
  EXPECT_TRUE(check_query_offsets(Offsets{0}, 0, 1).ok());
}

}  // namespace
}  // namespace kvant::attn
