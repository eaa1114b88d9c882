#include "engine/cache/kv_pools.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/core/device.h"

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;

std::vector<LayerGroup> groups(const char* spec, int32_t window = 0) {
  ModelConfig config;
  config.layers.resize(2);
  for (LayerConfig& layer : config.layers) {
    layer.num_q_heads = layer.num_kv_heads = 2;
    layer.head_dim_k = layer.head_dim_v = 16;
    layer.softmax_scale = 0.25f;
    layer.window = window;
  }
  return make_layer_groups(config, attn::parse_kv_spec(spec).value(), 16, cpu_device()).value();
}

KvBudget budget(const char* spec, const char* memory, int32_t max_sequences, bool prefix_cache = false) {
  auto result = plan_kv_budget(
      groups(spec), {.page_size = 16, .max_sequences = max_sequences, .max_tokens = 1024, .prefix_cache = prefix_cache},
      parse_kv_memory(memory).value(), int64_t{64} << 20);
  EXPECT_TRUE(result) << result.error().message();
  return result.value();
}

TEST(KvMemory, IsParsedByItsUnit) {
  const auto parsed = [](const char* text) { return parse_kv_memory(text).value(); };
  EXPECT_EQ(parsed("auto").unit, KvMemory::Unit::kAuto);
  EXPECT_EQ(parsed("2GiB").unit, KvMemory::Unit::kBytes);
  EXPECT_EQ(parsed("2GiB").value, 2.0 * (1 << 30));
  EXPECT_EQ(parsed("1.5KiB").value, 1536.0);
  EXPECT_EQ(parsed("900B").value, 900.0);
  EXPECT_EQ(parsed("40000t").unit, KvMemory::Unit::kTokens);
  EXPECT_EQ(parsed("0.8").unit, KvMemory::Unit::kFraction);
  for (const char* bad : {"", "GiB", "1.5", "0", "-1GiB", "2GB", "0t", "nan", "1e99B", "2 GiB", "2GiB "}) {
    const auto result = parse_kv_memory(bad);
    ASSERT_FALSE(result) << bad;
    EXPECT_THAT(result.error().message(), HasSubstr(std::string("'") + bad + "'"));
  }
}

TEST(KvBudget, BuysWholePagesWithinTheLimit) {
  // 2 layers, 2 heads of 16, K and V, 2 bytes: 256 bytes a token.
  const KvBudget bytes = budget("bf16", "1MiB", 8);
  EXPECT_EQ(bytes.shape.pool_tokens, 4096);
  EXPECT_EQ(bytes.bytes, 1 << 20);
  EXPECT_THAT(bytes.arithmetic, HasSubstr("KV memory 1.0 MiB = 4096 tokens x 256 bytes"));
  EXPECT_EQ(budget("bf16", "1048575B", 8).shape.pool_tokens, 4080);
  EXPECT_EQ(budget("bf16", "40000t", 8).shape.pool_tokens, 40000);
  EXPECT_EQ(budget("bf16", "0.5", 512).shape.pool_tokens, 32 * 4096);
  EXPECT_THAT(budget("bf16", "0.5", 512).arithmetic, HasSubstr("at most 0.5 x 64.0 MiB free"));
}

TEST(KvBudget, GivesNoMoreThanSequencesCanUse) {
  EXPECT_EQ(budget("bf16", "auto", 4).shape.pool_tokens, 4096);
  EXPECT_EQ(budget("bf16", "16MiB", 4).shape.pool_tokens, 4096);
  EXPECT_EQ(budget("bf16", "16MiB", 4, true).shape.pool_tokens, 65536) << "cached prefixes use the rest";
}

TEST(KvBudget, TakesExactPagesOfAllSequencesFirst) {
  const KvBudget full = budget("nvfp4", "4MiB", 8);
  EXPECT_EQ(full.shape.max_sequences, 8);
  EXPECT_LE(full.bytes, 4 << 20);
  EXPECT_THAT(full.arithmetic, HasSubstr("of exact pages"));
  EXPECT_LT(budget("nvfp4", "400KiB", 8).shape.max_sequences, 8) << "fewer sequences rather than no tokens";
  const auto nothing =
      plan_kv_budget(groups("nvfp4"), {.max_sequences = 8, .max_tokens = 1024}, parse_kv_memory("10KiB").value(), 0);
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().message(), HasSubstr("does not hold one page of one sequence"));
}

TEST(KvBudget, BoundsTheLayersOfAWindow) {
  const PoolShape shape{.page_size = 16, .max_sequences = 2, .max_tokens = 1024};
  EXPECT_EQ(pool_pages(groups("bf16")[0], shape).base, 128);
  EXPECT_LT(pool_pages(groups("bf16", 64)[0], shape).base, 50);
}

}  // namespace
}  // namespace kvant::engine
