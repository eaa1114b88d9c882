#include "core/large_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvant::test {
namespace {

TEST(LargePages, MappingsAreZerosAndKeepWhatIsWritten) {
  for (const size_t bytes : {size_t{1}, size_t{100'000}, size_t{5} << 20}) {
    auto* data = static_cast<unsigned char*>(map_large_pages(bytes));
    ASSERT_NE(data, nullptr);
    EXPECT_TRUE(std::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0; }));
    std::fill_n(data, bytes, static_cast<unsigned char>(0xa5));
    gather_large_pages(data, bytes);
    EXPECT_TRUE(std::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0xa5; }));
    unmap_large_pages(data, bytes);
  }
}

/// Gathering rounds outwards: neighbours keep what they hold.
TEST(LargePages, GatheringLeavesNeighboursAlone) {
  std::vector<LargePageVector<int>> pieces;
  for (int i = 0; i < 20; ++i) {
    pieces.emplace_back(size_t{60'000});
    std::iota(pieces.back().begin(), pieces.back().end(), i);
    gather_large_pages(pieces.back().data(), pieces.back().size() * sizeof(int));
  }
  pieces.erase(pieces.begin() + 7);
  gather_large_pages(pieces[8].data(), pieces[8].size() * sizeof(int));
  for (size_t i = 0; i < pieces.size(); ++i) {
    LargePageVector<int> expected(60'000);
    std::iota(expected.begin(), expected.end(), static_cast<int>(i < 7 ? i : i + 1));
    EXPECT_EQ(pieces[i], expected) << i;
  }
}

TEST(LargePages, SaysWhenThereIsNoMemory) {
  EXPECT_EQ(map_large_pages(std::numeric_limits<size_t>::max() / 2), nullptr);
  EXPECT_THROW(LargePageVector<char>(std::numeric_limits<ptrdiff_t>::max()), std::bad_alloc);
}

}  // namespace
}  // namespace kvant::test
