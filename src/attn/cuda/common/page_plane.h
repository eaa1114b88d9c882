#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn::cuda {

/// Threads of a cache writer's block.
inline constexpr int32_t kWriterThreads = 128;
/// Elements that one thread of a cache writer works on: a block of NVFP4.
inline constexpr int32_t kUnit = 16;
/// The same where rows are few: a quarter of a block.
inline constexpr int32_t kQuadUnit = 4;

/// The K or the V rows of a page as sums of strides in bytes. Read off a KvLayout, which alone knows the orders: in
/// each of them the place of a scale is a sum over its head, the low bits of its token and its block.
struct PagePlane {
  KvFormat format;
  CodeOrder code_order;
  uint32_t data, data_head, data_token, data_unit;
  uint32_t scale, scale_head;
  uint32_t scale_token[5];  ///< Bits 0 to 3 of the token, then per 16 tokens.
  uint32_t scale_block;     ///< Per block within a group of blocks.
  uint32_t scale_group;     ///< Per group.
  uint32_t group_blocks, group_reciprocal;

  KVANT_HD uint32_t data_offset(uint32_t head, uint32_t token, uint32_t block) const {
    return data + head * data_head + token * data_token + block * data_unit;
  }
  KVANT_HD uint32_t scale_offset(uint32_t head, uint32_t token, uint32_t block) const {
    uint32_t offset = scale + head * scale_head + (token >> 4) * scale_token[4];
    for (uint32_t bit = 0; bit < 4; ++bit) offset += (token >> bit & 1u) * scale_token[bit];
    const uint32_t group = block * group_reciprocal >> 16;
    return offset + group * scale_group + (block - group * group_blocks) * scale_block;
  }
};

PagePlane make_k_plane(const KvLayout& layout);
PagePlane make_v_plane(const KvLayout& layout);

/// Multiplying a number below 1024 by this and shifting right by 16 divides by `divisor`, 1 to 32.
constexpr uint32_t small_reciprocal(uint32_t divisor) { return 65536u / divisor + 1; }

/// The pages of a pool. plane[0] is K, plane[1] is V.
struct PagePool {
  uint8_t* pages;
  int64_t num_pages;
  int64_t page_stride;
  PagePlane plane[2];
};

PagePool make_page_pool(const KvLayout& layout, const KvPool& pool);

/// How rows of `head_dim` elements are spread over warps: whole rows, a lane per `elements`, spare lanes idle.
struct UnitGrid {
  int64_t num_rows;
  uint32_t row_units, rows_per_warp, row_reciprocal;

  int64_t num_warps() const { return (num_rows + rows_per_warp - 1) / rows_per_warp; }
  int64_t num_blocks() const {
    constexpr int64_t kWarps = kWriterThreads / 32;
    return (num_warps() + kWarps - 1) / kWarps;
  }
};

UnitGrid make_unit_grid(int64_t num_rows, int32_t head_dim, int32_t elements = kUnit);

}  // namespace kvant::attn::cuda
