#pragma once

#include <cstdint>
#include <string>

#include "kvant/attn/kv_format.h"
#include "kvant/core/status.h"

namespace kvant::attn {

/// Which of token and head is the outer axis of a page.
enum class TokenHeadOrder : uint8_t { kNhd, kHnd };

/// How two e2m1 codes share a byte.
enum class CodeOrder : uint8_t {
  kLinear,  ///< Even element in the low nibble: the bytes that vLLM, FlashInfer and TensorRT-LLM use.
  kPacked,  ///< kvant's bit order for GPUs without a hardware e2m1 convert; same size.
};

enum class ScaleOrder : uint8_t {
  kLinear,  ///< One byte per block, blocks of a row adjacent.
  kSm10xV,  ///< V scales swizzled over four tokens, as TensorRT-LLM's SM10x kernels read them; K linear.
  kLanes,   ///< kvant's order for CUDA: a lane's scales of a 16-token tile are one word. Tiles are head-major.
};

enum class PlaneOrder : uint8_t {
  kSplit,        ///< K data, K scales, V data, V scales.
  kInterleaved,  ///< K row then V row per (token, head): vLLM's order for 16-bit and FP8 pages. No scale planes.
};

/// The encoding of one layer's KV pages: a value type, and the only place that turns (page, head, token, element)
/// into a byte, for every writer, reader, converter and test, on host and device.
///
/// All offsets are in bytes from the start of the page. `validate()` must have passed before an offset is asked for.
struct KvLayout {
  KvFormat k_format = KvFormat::kBf16;
  KvFormat v_format = KvFormat::kBf16;
  int32_t head_dim_k = 128;
  int32_t head_dim_v = 128;
  int32_t num_kv_heads = 1;
  int32_t page_size = 16;  ///< Tokens per page; a power of two.
  TokenHeadOrder order = TokenHeadOrder::kNhd;
  CodeOrder code_order = CodeOrder::kLinear;
  ScaleOrder scale_order = ScaleOrder::kLinear;
  PlaneOrder plane_order = PlaneOrder::kSplit;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;

  /// kInvalidArgument with value, need and remedy when a limit of `kKvLimits` is broken.
  Status validate() const;
  std::string to_string() const;

  static constexpr int64_t data_row_bytes(KvFormat format, int32_t head_dim) {
    return static_cast<int64_t>(head_dim) * info(format).data_bits / 8;
  }
  static constexpr int64_t scale_row_bytes(KvFormat format, int32_t head_dim) {
    return info(format).scale_block == 0 ? 0 : head_dim / info(format).scale_block;
  }

  constexpr int64_t k_row_bytes() const { return data_row_bytes(k_format, head_dim_k); }
  constexpr int64_t v_row_bytes() const { return data_row_bytes(v_format, head_dim_v); }
  constexpr int64_t k_scale_row_bytes() const { return scale_row_bytes(k_format, head_dim_k); }
  constexpr int64_t v_scale_row_bytes() const { return scale_row_bytes(v_format, head_dim_v); }

  constexpr int64_t rows_per_page() const { return static_cast<int64_t>(num_kv_heads) * page_size; }
  /// Bytes of one token over all KV heads, K and V, scales included.
  constexpr int64_t bytes_per_token() const {
    return num_kv_heads * (k_row_bytes() + k_scale_row_bytes() + v_row_bytes() + v_scale_row_bytes());
  }
  constexpr int64_t page_bytes() const { return page_size * bytes_per_token(); }

  constexpr int64_t k_plane() const { return 0; }
  constexpr int64_t k_scale_plane() const { return rows_per_page() * k_row_bytes(); }
  constexpr int64_t v_plane() const { return k_scale_plane() + rows_per_page() * k_scale_row_bytes(); }
  constexpr int64_t v_scale_plane() const { return v_plane() + rows_per_page() * v_row_bytes(); }

  /// Index of (head, token) in a plane.
  constexpr int64_t row_index(int32_t head, int32_t token) const {
    return order == TokenHeadOrder::kNhd ? static_cast<int64_t>(token) * num_kv_heads + head
                                         : static_cast<int64_t>(head) * page_size + token;
  }
  /// First byte of a K (V) row; its elements are contiguous.
  constexpr int64_t k_row(int32_t head, int32_t token) const {
    const int64_t row = row_index(head, token);
    return plane_order == PlaneOrder::kSplit ? k_plane() + row * k_row_bytes() : row * (k_row_bytes() + v_row_bytes());
  }
  constexpr int64_t v_row(int32_t head, int32_t token) const {
    const int64_t row = row_index(head, token);
    return plane_order == PlaneOrder::kSplit ? v_plane() + row * v_row_bytes()
                                             : row * (k_row_bytes() + v_row_bytes()) + k_row_bytes();
  }
  /// Rows before the 16-token tile of (head, token) in a scale plane of ScaleOrder::kLanes.
  constexpr int64_t scale_tile(int32_t head, int32_t token) const {
    return static_cast<int64_t>(head) * page_size + token / 16 * 16;
  }
  /// Byte of the scale of one block (16 elements) of a K (V) row.
  constexpr int64_t k_scale(int32_t head, int32_t token, int32_t block) const {
    if (scale_order == ScaleOrder::kLanes) {
      // [8 tokens][blocks / lane blocks][2 halves of the tile][lane blocks]
      const int32_t lane_blocks = head_dim_k % 128 == 0 ? 2 : 1;
      return k_scale_plane() + scale_tile(head, token) * k_scale_row_bytes() + token % 8 * 2 * k_scale_row_bytes() +
             block / lane_blocks * 2 * lane_blocks + token % 16 / 8 * lane_blocks + block % lane_blocks;
    }
    return k_scale_plane() + row_index(head, token) * k_scale_row_bytes() + block;
  }
  constexpr int64_t v_scale(int32_t head, int32_t token, int32_t block) const {
    if (scale_order == ScaleOrder::kLanes) {
      // [blocks][4 pairs of tokens][2 halves of the tile][2 tokens]
      return v_scale_plane() + scale_tile(head, token) * v_scale_row_bytes() + block * 16 + token % 8 / 2 * 4 +
             token % 16 / 8 * 2 + token % 2;
    }
    if (scale_order == ScaleOrder::kSm10xV) {
      // Four tokens by S blocks, seen as [4][4][S/4] and stored as [4][S/4][4].
      const int32_t quarter = static_cast<int32_t>(v_scale_row_bytes()) / 4;
      const int32_t stored_token = token / 4 * 4 + block / quarter;
      const int32_t stored_block = 4 * (block % quarter) + token % 4;
      return v_scale_plane() + row_index(head, stored_token) * v_scale_row_bytes() + stored_block;
    }
    return v_scale_plane() + row_index(head, token) * v_scale_row_bytes() + block;
  }

  /// The layout of the exact pool that belongs to this one: f16, split planes, same page size and axis order.
  constexpr KvLayout exact() const {
    KvLayout layout = *this;
    layout.k_format = layout.v_format = KvFormat::kF16;
    layout.code_order = CodeOrder::kLinear;
    layout.scale_order = ScaleOrder::kLinear;
    layout.plane_order = PlaneOrder::kSplit;
    return layout;
  }
};

/// Limits of layouts on a kind of device; what is outside is refused by name.
struct KvLimits {
  int32_t min_page_size, max_page_size;
  int32_t head_dim_multiple, min_head_dim, max_head_dim;
  int32_t max_group_size;  ///< Query heads per KV head.
};
inline constexpr KvLimits kCpuKvLimits{1, 256, 16, 16, 512, 128};
inline constexpr KvLimits kCudaKvLimits{8, 256, 16, 64, 512, 64};

}  // namespace kvant::attn
