#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/attn/batch.h"

namespace kvant::attn {
namespace {

constexpr RequestPhase kD = RequestPhase::kDecode;
constexpr RequestPhase kE = RequestPhase::kExtend;
constexpr RequestPhase kP = RequestPhase::kPrefill;

TEST(PhaseOf, FollowsCommittedTokensAndNotTheRowsOfTheStep) {
  EXPECT_EQ(phase_of(10, 0), kP);
  EXPECT_EQ(phase_of(10, 9), kE);
  EXPECT_EQ(phase_of(10, 10), kD);
  EXPECT_EQ(phase_of(1, 0), kP);
  EXPECT_EQ(phase_of(1, 1), kD);
}

// With 3 drafts a decode brings 4 rows. Prompts whose last chunk has 4 rows too must stay prompt chunks.
TEST(PhaseOf, IsNeverDecodeForAnyChunkOfAPrompt) {
  constexpr int64_t kChunk = 64;
  for (int64_t prompt = 1; prompt <= 140; ++prompt) {
    for (int64_t committed = 0; committed < prompt; committed += kChunk)
      EXPECT_EQ(phase_of(prompt, committed), committed == 0 ? kP : kE) << prompt << " at " << committed;
    EXPECT_EQ(phase_of(prompt, prompt), kD);
  }
}

TEST(OrderBatch, LeavesAnOrderedBatchAlone) {
  const std::vector<RequestPhase> phases{kD, kD, kE, kP, kP};
  const BatchOrder order = order_batch(phases);
  EXPECT_EQ(order.source, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(order.counts, (std::array<int32_t, kNumPhases>{2, 1, 2}));
  EXPECT_EQ(order.num_moved, 0);
}

TEST(OrderBatch, GivesAnEmptyOrderForAnEmptyBatch) {
  const BatchOrder order = order_batch({});
  EXPECT_TRUE(order.source.empty());
  EXPECT_EQ(order.num_moved, 0);
}

TEST(OrderBatch, SwapsOnlyTheMisplacedOnes) {
  const std::vector<RequestPhase> phases{kP, kD, kD};
  const BatchOrder order = order_batch(phases);
  EXPECT_EQ(order.source, (std::vector<int32_t>{2, 1, 0}));
  EXPECT_EQ(order.num_moved, 2);
}

TEST(OrderBatch, TakesMisplacedRequestsInTheirOrder) {
  const std::vector<RequestPhase> phases{kP, kP, kD, kD};
  EXPECT_EQ(order_batch(phases).source, (std::vector<int32_t>{2, 3, 0, 1}));
}

bool is_ordered(const std::vector<RequestPhase>& phases, const std::vector<int32_t>& source) {
  return std::ranges::is_sorted(source, {}, [&](int32_t place) { return phases[static_cast<size_t>(place)]; });
}

int count_swaps(const std::vector<int32_t>& source) {
  int cycles = 0;
  std::vector<bool> seen(source.size());
  for (size_t start = 0; start < source.size(); ++start) {
    if (seen[start]) continue;
    ++cycles;
    for (size_t at = start; !seen[at]; at = static_cast<size_t>(source[at])) seen[at] = true;
  }
  return static_cast<int>(source.size()) - cycles;
}

int count_moved(const std::vector<int32_t>& source) {
  int moved = 0;
  for (size_t i = 0; i < source.size(); ++i) moved += source[i] != static_cast<int32_t>(i) ? 1 : 0;
  return moved;
}

// Every batch of up to six requests, against every permutation.
TEST(OrderBatch, UsesTheFewestMovesAndSwapsOfAllOrders) {
  for (size_t n = 1; n <= 6; ++n) {
    size_t num_batches = 1;
    for (size_t i = 0; i < n; ++i) num_batches *= 3;
    for (size_t batch = 0; batch < num_batches; ++batch) {
      std::vector<RequestPhase> phases(n);
      for (size_t i = 0, rest = batch; i < n; ++i, rest /= 3) phases[i] = static_cast<RequestPhase>(rest % 3);
      int least_moved = 100;
      int least_swaps = 100;
      std::vector<int32_t> source(n);
      std::iota(source.begin(), source.end(), 0);
      do {
        if (!is_ordered(phases, source)) continue;
        least_moved = std::min(least_moved, count_moved(source));
        least_swaps = std::min(least_swaps, count_swaps(source));
      } while (std::ranges::next_permutation(source).found);

      const BatchOrder order = order_batch(phases);
      std::vector<int32_t> sorted = order.source;
      std::ranges::sort(sorted);
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(sorted[i], static_cast<int32_t>(i)) << "not a permutation";
      ASSERT_TRUE(is_ordered(phases, order.source)) << "n " << n << " batch " << batch;
      ASSERT_EQ(count_moved(order.source), least_moved) << "n " << n << " batch " << batch;
      ASSERT_EQ(count_swaps(order.source), least_swaps) << "n " << n << " batch " << batch;
      ASSERT_EQ(order.num_moved, least_moved);
    }
  }
}

}  // namespace
}  // namespace kvant::attn
