#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kvant/attn/attention.h"
#include "kvant/core/status.h"

namespace kvant::attn {

// Packed draft masks: one row per query token, row_words 32-bit words apart. Bit b of word w says whether the row sees
// key 32 * w + b of its own request's draft block (the last q_len keys). Keys before the block are always visible,
// bits at or past the request's own length are 0.
//
// Other engines call the same bytes uint16 [rows, 2 * row_words]: entry 2w is the low half of word w, 2w + 1 the high
// half. On a little-endian machine that is the same memory, so a host passes its uint16 tensor as it is.

/// Words that a row of max_query_len bits needs; the least row stride.
constexpr int32_t mask_words(int32_t max_query_len) { return (max_query_len + 31) / 32; }

/// A packed mask in host memory, rows in the order of the batch's query rows.
struct PackedMask {
  std::vector<uint32_t> words{};  ///< [num_rows, row_words]
  int32_t num_rows = 0;
  int32_t row_words = 0;

  bool visible(int32_t row, int32_t key) const {
    const uint32_t word =
        words[static_cast<size_t>(row) * static_cast<size_t>(row_words) + static_cast<size_t>(key / 32)];
    return (word >> (key % 32) & 1u) != 0;
  }
};

/// Causal or full mask of requests that all have q_len rows: num_requests * q_len rows. row_words 0 = the least.
Result<PackedMask> make_uniform_mask(int32_t num_requests, int32_t q_len, DraftMask kind, int32_t row_words = 0);

/// Causal or full mask of a ragged batch, rows of all requests in order; requests of length 0 have none. The least
/// row stride follows from the longest request.
Result<PackedMask> make_ragged_mask(std::span<const int32_t> q_offsets, DraftMask kind, int32_t row_words = 0);

inline constexpr int32_t kNoParent = -1;

/// Mask of draft trees: parents[row] is the index of the row's parent within its own request, smaller than its own, or
/// kNoParent for a row that follows the context. A row sees itself and its ancestors.
Result<PackedMask> make_tree_mask(std::span<const int32_t> q_offsets, std::span<const int32_t> parents,
                                  int32_t row_words = 0);

/// Position of every row of such trees, for RoPE and windows: the context's length plus the row's depth.
/// context_lens [num_requests] counts the keys before each draft block.
Result<std::vector<int32_t>> tree_positions(std::span<const int32_t> q_offsets, std::span<const int32_t> parents,
                                            std::span<const int32_t> context_lens);

/// The uint16 form of packed words, low half first, whatever the machine's byte order. out has 2 * words entries.
Status to_uint16(std::span<const uint32_t> words, std::span<uint16_t> out);

/// Uniform causal and full masks, made once per (width, kind) for max_requests requests and then kept where they are,
/// so that a captured graph may hold their address. Not thread-safe.
class DraftMaskCache {
 public:
  explicit DraftMaskCache(int32_t max_requests) : max_requests_(max_requests) {}

  /// A batch of n requests uses the first n * q_len rows. Width 1 needs no mask: num_rows is 0.
  Result<const PackedMask*> get(int32_t q_len, DraftMask kind);

 private:
  int32_t max_requests_;
  std::map<std::pair<int32_t, DraftMask>, PackedMask> masks_;  // Nodes of a map never move.
};

}  // namespace kvant::attn
