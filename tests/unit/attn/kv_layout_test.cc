#include "kvant/attn/kv_layout.h"

#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvant::attn {
namespace {

using ::testing::HasSubstr;

KvLayout nvfp4(int32_t head_dim, int32_t heads, int32_t page_size) {
  return {.k_format = KvFormat::kNvfp4,
          .v_format = KvFormat::kNvfp4,
          .head_dim_k = head_dim,
          .head_dim_v = head_dim,
          .num_kv_heads = heads,
          .page_size = page_size};
}

TEST(KvLayout, HasThePublishedNvfp4Offsets) {
  struct Row {
    int32_t head_dim, heads, page_size;
    int64_t page_bytes, k_scale, v_data, v_scale;
  };
  const Row rows[] = {{128, 8, 16, 18432, 8192, 9216, 17408},
                      {64, 1, 16, 1152, 512, 576, 1088},
                      {256, 2, 32, 18432, 8192, 9216, 17408}};
  for (const Row& row : rows) {
    const KvLayout layout = nvfp4(row.head_dim, row.heads, row.page_size);
    ASSERT_EQ(layout.validate(), Status());
    EXPECT_EQ(layout.page_bytes(), row.page_bytes);
    EXPECT_EQ(layout.k_plane(), 0);
    EXPECT_EQ(layout.k_scale_plane(), row.k_scale);
    EXPECT_EQ(layout.v_plane(), row.v_data);
    EXPECT_EQ(layout.v_scale_plane(), row.v_scale);
    EXPECT_EQ(layout.page_bytes() * 32, int64_t{2} * row.heads * row.page_size * row.head_dim * 18);
  }
}

TEST(KvLayout, KeepsKAndVWidthsApart) {
  KvLayout layout = nvfp4(192, 4, 16);
  layout.head_dim_v = 128;
  EXPECT_EQ(layout.k_row_bytes() + layout.k_scale_row_bytes(), 108);
  EXPECT_EQ(layout.v_row_bytes() + layout.v_scale_row_bytes(), 72);
  EXPECT_EQ(layout.page_bytes(), 4 * 16 * 180);
  EXPECT_EQ(layout.bytes_per_token(), 720);
}

TEST(KvLayout, OrdersRowsByTokenOrByHead) {
  KvLayout layout = nvfp4(128, 8, 16);
  EXPECT_EQ(layout.k_row(3, 5), (5 * 8 + 3) * 64);
  EXPECT_EQ(layout.v_scale(3, 5, 7), 17408 + (5 * 8 + 3) * 8 + 7);
  layout.order = TokenHeadOrder::kHnd;
  EXPECT_EQ(layout.k_row(3, 5), (3 * 16 + 5) * 64);
  EXPECT_EQ(layout.k_scale(3, 5, 7), 8192 + (3 * 16 + 5) * 8 + 7);
  EXPECT_EQ(layout.v_row(3, 5), 9216 + (3 * 16 + 5) * 64);
}

TEST(KvLayout, InterleavesKAndVRowsPerTokenAndHead) {
  const KvLayout layout{.k_format = KvFormat::kBf16,
                        .v_format = KvFormat::kE4m3,
                        .head_dim_k = 64,
                        .head_dim_v = 32,
                        .num_kv_heads = 2,
                        .page_size = 4,
                        .plane_order = PlaneOrder::kInterleaved};
  EXPECT_EQ(layout.k_row(1, 2), 5 * 160);
  EXPECT_EQ(layout.v_row(1, 2), 5 * 160 + 128);
  EXPECT_EQ(layout.page_bytes(), 8 * 160);
}

/// Token n, block s of eight blocks is stored at token n' = s / 2, block s' = 4 (s % 2) + n.
TEST(KvLayout, SwizzlesVScalesOverFourTokens) {
  KvLayout layout = nvfp4(128, 1, 16);
  layout.scale_order = ScaleOrder::kSm10xV;
  ASSERT_EQ(layout.validate(), Status());
  const std::pair<int, int> first_token[] = {{0, 0}, {0, 4}, {1, 0}, {1, 4}, {2, 0}, {2, 4}, {3, 0}, {3, 4}};
  for (int token = 0; token < 4; ++token) {
    for (int block = 0; block < 8; ++block) {
      const auto [stored_token, stored_block] = first_token[block];
      EXPECT_EQ(layout.v_scale(0, token, block), layout.v_scale_plane() + stored_token * 8 + stored_block + token);
      EXPECT_EQ(layout.v_scale(0, token + 8, block), layout.v_scale(0, token, block) + 64);
      EXPECT_EQ(layout.k_scale(0, token, block), layout.k_scale_plane() + token * 8 + block);
    }
  }
}

TEST(KvLayout, PutsTheScalesOfALaneNextToEachOther) {
  KvLayout layout = nvfp4(128, 2, 16);
  layout.scale_order = ScaleOrder::kLanes;
  ASSERT_EQ(layout.validate(), Status());
  // K: blocks 2 and 3 of tokens 1 and 9 are one word; V: tokens 0, 1, 8 and 9 of a block are one.
  const int64_t k = layout.k_scale_plane() + 128 + 16 + 4;
  EXPECT_EQ(layout.k_scale(1, 1, 2), k);
  EXPECT_EQ(layout.k_scale(1, 1, 3), k + 1);
  EXPECT_EQ(layout.k_scale(1, 9, 2), k + 2);
  EXPECT_EQ(layout.k_scale(1, 9, 3), k + 3);
  const int64_t v = layout.v_scale_plane() + 128 + 48;
  EXPECT_EQ(layout.v_scale(1, 0, 3), v);
  EXPECT_EQ(layout.v_scale(1, 1, 3), v + 1);
  EXPECT_EQ(layout.v_scale(1, 8, 3), v + 2);
  EXPECT_EQ(layout.v_scale(1, 9, 3), v + 3);

  layout = nvfp4(64, 1, 32);
  layout.scale_order = ScaleOrder::kLanes;
  EXPECT_EQ(layout.k_scale(0, 21, 3), layout.k_scale_plane() + 64 + 40 + 6);
  EXPECT_EQ(layout.k_scale(0, 29, 3), layout.k_scale_plane() + 64 + 40 + 7);
  EXPECT_EQ(layout.v_scale(0, 21, 3), layout.v_scale_plane() + 64 + 48 + 8 + 1);
}

/// Every byte of a page belongs to exactly one element pair or scale, whatever the orders.
TEST(KvLayout, CoversEveryByteOfAPageOnce) {
  for (const TokenHeadOrder order : {TokenHeadOrder::kNhd, TokenHeadOrder::kHnd}) {
    for (const ScaleOrder scale_order : {ScaleOrder::kLinear, ScaleOrder::kSm10xV, ScaleOrder::kLanes}) {
      for (const PlaneOrder plane_order : {PlaneOrder::kSplit, PlaneOrder::kInterleaved}) {
        for (const KvFormat k_format : {KvFormat::kF16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
          KvLayout layout = nvfp4(64, 3, 32);
          layout.k_format = k_format;
          layout.head_dim_k = 80;
          layout.order = order;
          layout.scale_order = scale_order;
          layout.plane_order = plane_order;
          if (plane_order == PlaneOrder::kInterleaved) layout.v_format = KvFormat::kE5m2;
          if (!layout.validate().ok()) continue;
          std::vector<int> uses(static_cast<size_t>(layout.page_bytes()));
          for (int32_t head = 0; head < 3; ++head) {
            for (int32_t token = 0; token < 32; ++token) {
              for (int64_t i = 0; i < layout.k_row_bytes(); ++i)
                ++uses.at(static_cast<size_t>(layout.k_row(head, token) + i));
              for (int64_t i = 0; i < layout.v_row_bytes(); ++i)
                ++uses.at(static_cast<size_t>(layout.v_row(head, token) + i));
              for (int32_t b = 0; b < layout.k_scale_row_bytes(); ++b)
                ++uses.at(static_cast<size_t>(layout.k_scale(head, token, b)));
              for (int32_t b = 0; b < layout.v_scale_row_bytes(); ++b)
                ++uses.at(static_cast<size_t>(layout.v_scale(head, token, b)));
            }
          }
          EXPECT_EQ(std::set<int>(uses.begin(), uses.end()), std::set<int>{1}) << layout.to_string();
        }
      }
    }
  }
}

TEST(KvLayout, RefusesWhatIsOutsideTheLimitsByName) {
  const auto refuses = [](auto change, const char* text) {
    KvLayout layout = nvfp4(128, 8, 16);
    change(layout);
    const Status status = layout.validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  refuses([](KvLayout& l) { l.head_dim_k = 100; }, "head_dim_k 100");
  refuses([](KvLayout& l) { l.head_dim_v = 528; }, "head_dim_v 528");
  refuses([](KvLayout& l) { l.head_dim_v = 0; }, "head_dim_v 0");
  refuses([](KvLayout& l) { l.page_size = 24; }, "page size 24");
  refuses([](KvLayout& l) { l.page_size = 512; }, "page size 512");
  refuses([](KvLayout& l) { l.num_kv_heads = 0; }, "num_kv_heads 0");
  refuses([](KvLayout& l) { l.plane_order = PlaneOrder::kInterleaved; }, "use split planes");
  refuses(
      [](KvLayout& l) {
        l.page_size = 2;
        l.scale_order = ScaleOrder::kSm10xV;
      },
      "page size % 4 = 0");
  refuses(
      [](KvLayout& l) {
        l.head_dim_v = 96;
        l.scale_order = ScaleOrder::kSm10xV;
      },
      "head_dim_v 96");
  refuses(
      [](KvLayout& l) {
        l.v_format = KvFormat::kE4m3;
        l.scale_order = ScaleOrder::kSm10xV;
      },
      "needs v format nvfp4");
  refuses(
      [](KvLayout& l) {
        l.page_size = 8;
        l.scale_order = ScaleOrder::kLanes;
      },
      "use larger pages");
  refuses(
      [](KvLayout& l) {
        l.k_format = l.v_format = KvFormat::kE4m3;
        l.scale_order = ScaleOrder::kLanes;
      },
      "needs an nvfp4 plane, not e4m3/e4m3");
}

TEST(KvLayout, ExactPagesAreF16WithTheSameSizesAndAxisOrder) {
  KvLayout layout = nvfp4(128, 8, 16);
  layout.order = TokenHeadOrder::kHnd;
  layout.code_order = CodeOrder::kPacked;
  layout.scale_order = ScaleOrder::kSm10xV;
  const KvLayout exact = layout.exact();
  EXPECT_EQ(exact.validate(), Status());
  EXPECT_EQ(exact.page_bytes(), 2 * 8 * 16 * 128 * 2);
  EXPECT_EQ(exact.order, TokenHeadOrder::kHnd);
}

}  // namespace
}  // namespace kvant::attn
