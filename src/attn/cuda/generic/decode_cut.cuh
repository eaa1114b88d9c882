#pragma once

// How work is cut: into equal chunks, one a block or one a warp.

#include <cstdint>

namespace kvant::attn::cuda {

namespace detail {

/// One (request, KV head, row tile) and the part of its keys that a block works on.
struct Segment {
  int32_t request, head, row_tile;
  int32_t q_begin, q_len, kv_len;  ///< kv_len counts this rank's keys.
  int32_t global_len;
  int32_t tile_begin, tile_end;
  int32_t next;                     ///< Position of the work after it.
  int32_t first_chunk, last_chunk;  ///< Chunks that hold parts of the item.
  int32_t first_page;               ///< Pages before it are outside the window and may be anything.
  int32_t full_begin, full_end;     ///< Tiles whose keys every row sees.
};

/// a / b, for quotients below 2^20: a division proper is a long piece of code, and at an item's start nothing hides it.
__device__ __forceinline__ int32_t divide(int32_t a, int32_t b) {
  const auto quotient = static_cast<int32_t>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
  const int32_t rest = a - quotient * b;
  return quotient + (rest >= b ? 1 : 0) - (rest < 0 ? 1 : 0);
}
__device__ __forceinline__ int32_t divide_up_quick(int32_t a, int32_t b) { return divide(a + b - 1, b); }
__device__ __forceinline__ int32_t divide_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

/// Who works on a chunk.
enum class Sharing : int8_t {
  kBlock,  ///< A block, on any number of segments.
  kPart,   ///< A block, on one segment, which each warp finds by itself.
  kWarp,   ///< A warp, on any number of whole items.
  kItem,   ///< A warp, on one whole item.
};

/// All work, cut into equal chunks, one a block or one a warp. Positions count tiles of items in order.
struct Chunks {
  int32_t total;  ///< Positions.
  int32_t
      item;  ///< Positions of an item, in so far as items are alike and no chunk crosses from one to another; else 0.
  int32_t size;
  Sharing sharing;
};

/// `item` is the tiles of an item where all items are alike, else 0. Whole items, or whole parts of an item, save a
/// block its second prologue and a merge, unless too many blocks would have no work. Where there are items enough for
/// every warp, warps need not even merge with each other. Little work is cut into chunks of kLeast tiles, or twice that
/// where tiles are large and still keep kSpread multiprocessors busy.
template <int kWarps, int kLeast, bool kLargeTiles, int kMostAlone>
__device__ __forceinline__ Chunks cut_work(int32_t total, int32_t item, int32_t num_items, int32_t num_blocks) {
  if (kMostAlone > 0 && item > 0) {
    const int32_t warps = kWarps * num_blocks, items = divide(num_items + warps - 1, warps);
    if (items <= kMostAlone && int64_t{10} * items * warps <= int64_t{11} * num_items)
      return {total, item, items * item, Sharing::kWarp};
  }
  static_assert((kLeast & (kLeast - 1)) == 0, "rounding up needs no division");
  constexpr int32_t kSpread = 128;
  const int32_t least = kLargeTiles && total > kSpread * kLeast ? 2 * kLeast : kLeast;
  if (total <= least * num_blocks) {  // Latency counts, and divisions with it.
    const int32_t padded = item < least ? 0 : (item + least - 1) & -least;
    if (padded > 0 && num_items * padded <= least * num_blocks)
      return {num_items * padded, padded, least, Sharing::kBlock};
    return {total, 0, least, Sharing::kBlock};  // Each block has a chunk, which the padded items might not.
  }
  const int32_t share = divide_up(total, num_blocks);
  if (item > 0) {
    const int32_t parts = max(num_blocks / num_items, 1);
    const int32_t items = parts > 1 ? 1 : divide_up(num_items, num_blocks);
    const int32_t size = parts > 1 ? divide_up(item, parts) : items * item;
    const int32_t padded = size < item ? divide_up(item, size) * size : item;
    const int32_t positions = num_items * padded;
    if (10 * size <= 11 * share) return {positions, padded, size, Sharing::kBlock};
  }
  return {total, 0, share, Sharing::kBlock};
}

}  // namespace detail

}  // namespace kvant::attn::cuda
