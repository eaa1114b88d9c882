#include "kvant/attn/mask.h"

#include <bit>
#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvant::attn {
namespace {

using Halves = std::vector<uint16_t>;
using Offsets = std::vector<int32_t>;
using ::testing::HasSubstr;

Halves row_halves(const PackedMask& mask, int32_t row) {
  Halves all(mask.words.size() * 2);
  EXPECT_TRUE(to_uint16(mask.words, all).ok());
  const auto first = all.begin() + row * mask.row_words * 2;
  return {first, first + mask.row_words * 2};
}

struct UniformCase {
  int32_t q_len;
  DraftMask kind;
  int32_t row;
  Halves halves;
};

// Low half first; values written down by hand.
TEST(PackedMask, UniformMasksHaveTheExpectedWords) {
  constexpr DraftMask kCausal = DraftMask::kCausal;
  constexpr DraftMask kFull = DraftMask::kFull;
  const UniformCase cases[] = {
      {1, kCausal, 0, {0x0001, 0}},
      {1, kFull, 0, {0x0001, 0}},
      {2, kCausal, 0, {0x0001, 0}},
      {2, kCausal, 1, {0x0003, 0}},
      {2, kFull, 0, {0x0003, 0}},
      {2, kFull, 1, {0x0003, 0}},
      {3, kCausal, 0, {0x0001, 0}},
      {3, kCausal, 1, {0x0003, 0}},
      {3, kCausal, 2, {0x0007, 0}},
      {3, kFull, 0, {0x0007, 0}},
      {3, kFull, 1, {0x0007, 0}},
      {3, kFull, 2, {0x0007, 0}},
      {4, kCausal, 0, {0x0001, 0}},
      {4, kCausal, 1, {0x0003, 0}},
      {4, kCausal, 2, {0x0007, 0}},
      {4, kCausal, 3, {0x000f, 0}},
      {4, kFull, 0, {0x000f, 0}},
      {4, kFull, 3, {0x000f, 0}},
      {5, kCausal, 0, {0x0001, 0}},
      {5, kCausal, 1, {0x0003, 0}},
      {5, kCausal, 2, {0x0007, 0}},
      {5, kCausal, 3, {0x000f, 0}},
      {5, kCausal, 4, {0x001f, 0}},
      {5, kFull, 0, {0x001f, 0}},
      {5, kFull, 4, {0x001f, 0}},
      {16, kCausal, 15, {0xffff, 0}},
      {16, kFull, 0, {0xffff, 0}},
      {17, kCausal, 16, {0xffff, 0x0001}},
      {17, kFull, 0, {0xffff, 0x0001}},
      {32, kCausal, 31, {0xffff, 0xffff}},
      {32, kFull, 0, {0xffff, 0xffff}},
      {33, kCausal, 0, {0x0001, 0, 0, 0}},
      {33, kCausal, 32, {0xffff, 0xffff, 0x0001, 0}},
      {33, kFull, 0, {0xffff, 0xffff, 0x0001, 0}},
  };
  for (const UniformCase& c : cases) {
    const Result<PackedMask> mask = make_uniform_mask(1, c.q_len, c.kind);
    ASSERT_TRUE(mask);
    EXPECT_EQ(mask->num_rows, c.q_len);
    EXPECT_EQ(row_halves(*mask, c.row), c.halves) << "q_len " << c.q_len << " row " << c.row;
  }
}

TEST(PackedMask, RaggedMasksSkipEmptyRequests) {
  const Offsets offsets{0, 2, 2, 5};
  const Result<PackedMask> causal = make_ragged_mask(offsets, DraftMask::kCausal);
  const Result<PackedMask> full = make_ragged_mask(offsets, DraftMask::kFull);
  ASSERT_TRUE(causal);
  ASSERT_TRUE(full);
  EXPECT_EQ(causal->num_rows, 5);
  EXPECT_EQ(causal->row_words, 1);
  EXPECT_EQ(causal->words, (std::vector<uint32_t>{1, 3, 1, 3, 7}));
  EXPECT_EQ(full->words, (std::vector<uint32_t>{3, 3, 7, 7, 7}));
}

TEST(PackedMask, RaggedRowsUseTheLongestRequestForTheirStride) {
  const Result<PackedMask> mask = make_ragged_mask(Offsets{0, 1, 34}, DraftMask::kFull);
  ASSERT_TRUE(mask);
  EXPECT_EQ(mask->row_words, 2);
  EXPECT_EQ(row_halves(*mask, 0), (Halves{0x0001, 0, 0, 0}));
  EXPECT_EQ(row_halves(*mask, 33), (Halves{0xffff, 0xffff, 0x0001, 0}));
}

// Every bit of every length, against the definition.
TEST(PackedMask, EveryBitFollowsTheDefinition) {
  std::vector<int32_t> lengths;
  for (int32_t q_len = 1; q_len <= 33; ++q_len) lengths.push_back(q_len);
  lengths.insert(lengths.end(), {63, 64, 65});
  for (int32_t q_len : lengths) {
    for (DraftMask kind : {DraftMask::kCausal, DraftMask::kFull}) {
      for (int32_t row_words : {0, mask_words(q_len) + 2}) {
        const Result<PackedMask> mask = make_uniform_mask(2, q_len, kind, row_words);
        ASSERT_TRUE(mask);
        ASSERT_EQ(mask->row_words, row_words == 0 ? (q_len + 31) / 32 : row_words);
        for (int32_t row = 0; row < 2 * q_len; ++row) {
          for (int32_t key = 0; key < 32 * mask->row_words; ++key) {
            const bool expected = kind == DraftMask::kCausal ? key <= row % q_len : key < q_len;
            ASSERT_EQ(mask->visible(row, key), expected) << q_len << " row " << row << " key " << key;
          }
        }
      }
    }
  }
}

TEST(PackedMask, Uint16FormIsTheSameMemoryOnLittleEndian) {
  if constexpr (std::endian::native != std::endian::little) GTEST_SKIP() << "big-endian machine";
  const PackedMask mask = *make_uniform_mask(2, 37, DraftMask::kCausal);
  Halves halves(mask.words.size() * 2);
  ASSERT_TRUE(to_uint16(mask.words, halves).ok());
  EXPECT_EQ(std::memcmp(halves.data(), mask.words.data(), mask.words.size() * 4), 0);
  halves.pop_back();
  EXPECT_THAT(to_uint16(mask.words, halves).message(), HasSubstr("are needed"));
}

TEST(TreeMask, RowsSeeThemselvesAndTheirAncestors) {
  // Request 0: 0 -> {1, 2}, 1 -> 3. Request 1: empty. Request 2: two roots, 1 -> 2.
  const Offsets offsets{0, 4, 4, 7};
  const Offsets parents{kNoParent, 0, 0, 1, kNoParent, kNoParent, 1};
  const Result<PackedMask> mask = make_tree_mask(offsets, parents);
  ASSERT_TRUE(mask);
  EXPECT_EQ(mask->words, (std::vector<uint32_t>{0b0001, 0b0011, 0b0101, 0b1011, 0b001, 0b010, 0b110}));
  EXPECT_EQ(*tree_positions(offsets, parents, Offsets{10, 99, 20}), (Offsets{10, 11, 11, 12, 20, 20, 21}));
}

TEST(TreeMask, OfAChainIsTheCausalMask) {
  for (int32_t q_len : {1, 31, 32, 33, 64, 65}) {
    Offsets parents(static_cast<size_t>(q_len));
    for (int32_t i = 0; i < q_len; ++i) parents[static_cast<size_t>(i)] = i - 1;
    EXPECT_EQ(make_tree_mask(Offsets{0, q_len}, parents)->words,
              make_uniform_mask(1, q_len, DraftMask::kCausal)->words);
  }
}

TEST(TreeMask, RefusesBadParentsByName) {
  const auto message = [](Offsets parents) { return make_tree_mask(Offsets{0, 2, 4}, parents).error().message(); };
  EXPECT_THAT(message({-1, 0, -1}), HasSubstr("3 tree parents for 4 query rows"));
  EXPECT_THAT(message({-1, 1, -1, 0}), HasSubstr("draft 1 of request 0 has parent 1"));
  EXPECT_THAT(message({-1, 0, -2, 0}), HasSubstr("draft 0 of request 1 has parent -2"));
  EXPECT_THAT(tree_positions(Offsets{0, 1}, Offsets{-1}, Offsets{}).error().message(), HasSubstr("context lengths"));
}

TEST(PackedMask, RefusesShortRowsAndBadOffsets) {
  EXPECT_THAT(make_uniform_mask(1, 33, DraftMask::kFull, 1).error().message(), HasSubstr("2 words are needed for 33"));
  EXPECT_THAT(make_ragged_mask(Offsets{0, 3, 2}, DraftMask::kFull).error().message(), HasSubstr("must not decrease"));
  EXPECT_THAT(make_ragged_mask(Offsets{}, DraftMask::kFull).error().message(), HasSubstr("empty"));
  EXPECT_THAT(make_uniform_mask(1, -1, DraftMask::kFull).error().message(), HasSubstr("-1 query rows"));
  EXPECT_THAT(make_uniform_mask(1, 2, DraftMask::kPacked).error().message(), HasSubstr("make_tree_mask"));
}

TEST(DraftMaskCache, NeverMovesAMaskOnceMade) {
  DraftMaskCache cache(3);
  const PackedMask* first = *cache.get(4, DraftMask::kCausal);
  const uint32_t* words = first->words.data();
  const std::vector<uint32_t> content = first->words;
  for (int32_t q_len = 2; q_len <= 64; ++q_len)
    for (DraftMask kind : {DraftMask::kCausal, DraftMask::kFull}) ASSERT_TRUE(cache.get(q_len, kind));
  EXPECT_EQ(*cache.get(4, DraftMask::kCausal), first);
  EXPECT_EQ(first->words.data(), words);
  EXPECT_EQ(first->words, content);
}

TEST(DraftMaskCache, HoldsRowsForEveryRequestPerWidthAndKind) {
  DraftMaskCache cache(3);
  EXPECT_EQ((*cache.get(2, DraftMask::kCausal))->words, (std::vector<uint32_t>{1, 3, 1, 3, 1, 3}));
  EXPECT_EQ((*cache.get(2, DraftMask::kFull))->words, (std::vector<uint32_t>{3, 3, 3, 3, 3, 3}));
  EXPECT_EQ((*cache.get(1, DraftMask::kCausal))->num_rows, 0);
  EXPECT_FALSE(cache.get(2, DraftMask::kPacked));
}

}  // namespace
}  // namespace kvant::attn
