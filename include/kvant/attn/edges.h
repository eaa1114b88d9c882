#pragma once

#include <algorithm>
#include <cstdint>

#include "kvant/attn/kv_spec.h"

namespace kvant::attn {

/// Prefill runs on a grid of this many tokens from position 0, whatever chunks the scheduler hands in, so that what a
/// query sees does not depend on scheduling.
inline constexpr int32_t kPrefillGrid = 256;

/// Which pages of a sequence are exact, as a pure function of positions. Pages age in order, so two numbers say it all:
/// pages [0, head_pages) are exact for ever, pages [head_pages, aged_end) are quantised, the rest is exact.
struct EdgePlan {
  ExactEdges edges;
  int32_t page_size = 16;

  constexpr int32_t head_pages() const { return (edges.head + page_size - 1) / page_size; }

  /// First page that has not aged when `committed` tokens are accepted: a page whose last token is t has aged when
  /// committed - 1 - t >= tail. Never less than head_pages().
  constexpr int32_t aged_end(int32_t committed) const {
    const int32_t num_aged_tokens = committed - edges.tail;
    return std::max(head_pages(), num_aged_tokens > 0 ? num_aged_tokens / page_size : 0);
  }

  /// The committed length whose ageing applies to prompt position `position`: the start of its grid cell.
  static constexpr int32_t prefill_committed(int32_t position) { return position / kPrefillGrid * kPrefillGrid; }
};

}  // namespace kvant::attn
