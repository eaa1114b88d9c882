#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/append.h"
#include "kvant/core/thread_pool.h"
#include "support/kv_test_cache.h"

namespace kvant::attn {
namespace {

using test::TestCache;
using ::testing::HasSubstr;

/// All valid combinations of orders for one pair of formats.
std::vector<KvLayout> all_orders(KvFormat k_format, KvFormat v_format) {
  std::vector<KvLayout> layouts;
  for (const TokenHeadOrder order : {TokenHeadOrder::kNhd, TokenHeadOrder::kHnd}) {
    for (const CodeOrder code_order : {CodeOrder::kLinear, CodeOrder::kPacked}) {
      for (const ScaleOrder scale_order : {ScaleOrder::kLinear, ScaleOrder::kSm10xV, ScaleOrder::kLanes}) {
        for (const PlaneOrder plane_order : {PlaneOrder::kSplit, PlaneOrder::kInterleaved}) {
          const KvLayout layout{.k_format = k_format,
                                .v_format = v_format,
                                .head_dim_k = 96,
                                .head_dim_v = 64,
                                .num_kv_heads = 3,
                                .page_size = 16,
                                .order = order,
                                .code_order = code_order,
                                .scale_order = scale_order,
                                .plane_order = plane_order};
          if (layout.validate().ok()) layouts.push_back(layout);
        }
      }
    }
  }
  return layouts;
}

TEST(ConvertPages, EveryPairOfOrdersRoundTripsAndEqualsADirectAppend) {
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  const std::pair<KvFormat, KvFormat> formats[] = {{KvFormat::kNvfp4, KvFormat::kNvfp4},
                                                   {KvFormat::kE4m3, KvFormat::kNvfp4},
                                                   {KvFormat::kBf16, KvFormat::kE4m3},
                                                   {KvFormat::kF32, KvFormat::kF16}};
  for (const auto& [k_format, v_format] : formats) {
    const std::vector<KvLayout> layouts = all_orders(k_format, v_format);
    const std::vector<float> k = test::random_values(32 * 3 * 96, 1), v = test::random_values(32 * 3 * 64, 2);
    std::vector<int64_t> slots(32);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
    std::vector<TestCache> caches;
    for (const KvLayout& layout : layouts) {
      caches.emplace_back(layout, 2, 0);
      const AppendArgs args{.cache = caches.back().view(),
                            .policy = ScalePolicy::kSearch,
                            .k = k.data(),
                            .v = v.data(),
                            .slots = slots.data(),
                            .num_tokens = 32};
      ASSERT_EQ(append(args, stream), Status());
    }
    for (TestCache& from : caches) {
      for (TestCache& to : caches) {
        const KvCacheView a = from.view(), b = to.view();
        TestCache there(b.layout, 2, 0), back(a.layout, 2, 0);
        ASSERT_EQ(convert_pages(a.layout, a.base, b.layout, there.view().base, stream), Status());
        ASSERT_EQ(there.base, to.base) << a.layout.to_string() << " to " << b.layout.to_string();
        ASSERT_EQ(convert_pages(b.layout, there.view().base, a.layout, back.view().base, stream), Status());
        ASSERT_EQ(back.base, from.base);
      }
    }
  }
}

TEST(ConvertPages, RefusesOtherFormatsSizesAndSmallTargets) {
  ThreadPool pool(1);
  const Stream stream = Stream::on_cpu(pool);
  const KvLayout layout{.k_format = KvFormat::kE4m3,
                        .v_format = KvFormat::kE4m3,
                        .head_dim_k = 64,
                        .head_dim_v = 64,
                        .num_kv_heads = 2,
                        .page_size = 8};
  TestCache from(layout, 2, 0), small(layout, 1, 0);
  for (const auto change : {+[](KvLayout& l) { l.k_format = KvFormat::kE5m2; }, +[](KvLayout& l) { l.head_dim_v = 80; },
                            +[](KvLayout& l) { l.page_size = 4; }, +[](KvLayout& l) { l.num_kv_heads = 1; }}) {
    KvLayout other = layout;
    change(other);
    TestCache to(other, 2, 0);
    const Status status = convert_pages(layout, from.view().base, other, to.view().base, stream);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("only orders may differ"));
  }
  EXPECT_THAT(convert_pages(layout, from.view().base, layout, small.view().base, stream).message(),
              HasSubstr("target pool of 1 page"));
  EXPECT_THAT(convert_pages(layout, from.view().base, layout, from.view().base, stream).message(),
              HasSubstr("in place"));
}

}  // namespace
}  // namespace kvant::attn
