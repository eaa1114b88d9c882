#include "attn/cuda/common/page_plane.h"

#include <gtest/gtest.h>

#include "support/layout_list.h"

namespace kvant::attn::cuda {
namespace {

void check_planes(const KvLayout& layout) {
  SCOPED_TRACE(layout.to_string());
  const PagePlane k = make_k_plane(layout), v = make_v_plane(layout);
  for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
    for (int32_t token = 0; token < layout.page_size; ++token) {
      for (int32_t unit = 0; unit < layout.head_dim_k / kUnit; ++unit) {
        ASSERT_EQ(k.data_offset(head, token, unit),
                  layout.k_row(head, token) + KvLayout::data_row_bytes(layout.k_format, kUnit * unit));
        if (layout.k_scale_row_bytes() > 0) {
          ASSERT_EQ(k.scale_offset(head, token, unit), layout.k_scale(head, token, unit)) << head << " " << token;
        }
      }
      for (int32_t unit = 0; unit < layout.head_dim_v / kUnit; ++unit) {
        ASSERT_EQ(v.data_offset(head, token, unit),
                  layout.v_row(head, token) + KvLayout::data_row_bytes(layout.v_format, kUnit * unit));
        if (layout.v_scale_row_bytes() > 0) {
          ASSERT_EQ(v.scale_offset(head, token, unit), layout.v_scale(head, token, unit)) << head << " " << token;
        }
      }
    }
  }
}

TEST(PagePlane, FindsEveryByteOfEveryLayout) {
  int num_layouts = 0;
  for (const KvFormat k_format : {KvFormat::kF16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    for (const KvFormat v_format : {KvFormat::kBf16, KvFormat::kE5m2, KvFormat::kNvfp4}) {
      for (const int32_t page_size : {8, 16, 32, 256}) {
        for (const auto& [k_dim, v_dim] : {std::pair{64, 64}, {80, 96}, {96, 192}, {192, 128}, {128, 80}, {512, 512}}) {
          const KvLayout sizes{.k_format = k_format,
                               .v_format = v_format,
                               .head_dim_k = k_dim,
                               .head_dim_v = v_dim,
                               .num_kv_heads = 3,
                               .page_size = page_size};
          for (const KvLayout& layout : attn::test::in_all_orders(sizes)) {
            check_planes(layout);
            ++num_layouts;
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_GT(num_layouts, 500);
}

TEST(UnitGrid, GivesEveryUnitOfEveryRowToOneLane) {
  for (const int32_t elements : {kUnit, kQuadUnit}) {
    for (int32_t head_dim = 16; head_dim <= 32 * elements; head_dim += 16) {
      const UnitGrid grid = make_unit_grid(7, head_dim, elements);
      const auto row_units = static_cast<uint32_t>(head_dim / elements);
      EXPECT_EQ(grid.rows_per_warp, 32 / row_units);
      EXPECT_EQ(grid.num_warps(), (7 + grid.rows_per_warp - 1) / grid.rows_per_warp);
      for (uint32_t lane = 0; lane < 32; ++lane)
        EXPECT_EQ(lane * grid.row_reciprocal >> 16, lane / row_units) << head_dim;
    }
  }
}

}  // namespace
}  // namespace kvant::attn::cuda
