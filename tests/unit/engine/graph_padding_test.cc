#include <gtest/gtest.h>

#include "engine/runner/graph_cache.h"

namespace kvant::engine {
namespace {

TEST(GraphPadding, HoldsEveryBatchAndWastesLittle) {
  for (int32_t requests = 1; requests <= 512; ++requests) {
    for (int32_t query_len = 1; query_len <= 16; ++query_len) {
      const StepPadding padding = graph_padding(requests, query_len, 512);
      ASSERT_GE(padding.num_requests, requests);
      ASSERT_GE(padding.num_tokens, requests * query_len);
      ASSERT_EQ(padding.num_tokens % padding.num_requests, 0);
      if (requests > 8) {
        ASSERT_LE(padding.num_requests, requests + requests / 8 + 8);
      }
    }
  }
}

TEST(GraphPadding, NeverExceedsTheLimit) {
  EXPECT_EQ(graph_padding(5, 1, 6).num_requests, 6);
  EXPECT_EQ(graph_padding(3, 4, 3).num_tokens, 12);
  EXPECT_EQ(graph_padding(1, 1, 1).num_requests, 1);
}

TEST(GraphStats, CountsPromptsApart) {
  GraphCache graphs;
  graphs.note_miss(GraphMiss::kPrompt);
  graphs.note_miss(GraphMiss::kFirstOfShape);
  graphs.note_miss(GraphMiss::kTooManyRows);
  EXPECT_EQ(graphs.stats().decode_misses(), 2);
  EXPECT_EQ(to_string(GraphMiss::kTooManyRows), "too many rows");
}

}  // namespace
}  // namespace kvant::engine
