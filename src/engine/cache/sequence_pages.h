#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/page_allocator.h"
#include "kvant/attn/append.h"
#include "kvant/attn/edges.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::engine {

/// The page table of one layer group over all sequences, and the two pools it draws from. Knows positions and pages,
/// not bytes. Pages age in order. A page may be held by several sequences and by the prefix cache; only a sequence that
/// is its one holder ever writes to it.
class SequencePages {
 public:
  struct Options {
    attn::ExactEdges edges;
    int32_t page_size = 16;
    int32_t max_sequences = 1;
    int32_t max_tokens = 0;   ///< Per sequence.
    int32_t window = 0;       ///< Keys that a query sees; 0 = all. Pages that no query will see again are let go.
    int32_t base_pages = 0;   ///< In the pool.
    int32_t exact_pages = 0;  ///< Likewise; 0 without edges.
  };
  explicit SequencePages(const Options& options);

  /// Pages of both pools.
  struct Need {
    int32_t base_pages = 0;
    int32_t exact_pages = 0;
  };
  /// Pages that one sequence can hold at once while it grows to `length` tokens, in chunks and decode steps.
  static Need most_pages(const attn::EdgePlan& plan, int32_t window, int32_t length);

  const attn::EdgePlan& edge_plan() const { return plan_; }
  bool has_edges() const { return plan_.edges.enabled(); }
  int32_t window() const { return window_; }
  const PageAllocator& base() const { return base_; }
  const PageAllocator& exact() const { return exact_; }
  /// Entries between the tables of two sequences.
  int32_t table_stride() const { return table_stride_; }
  std::span<const int32_t> table(int32_t sequence) const;
  int32_t aged_end(int32_t sequence) const { return aged_end_[static_cast<size_t>(sequence)]; }
  int32_t dropped_end(int32_t sequence) const { return dropped_end_[static_cast<size_t>(sequence)]; }
  /// First page that a query at position `length` or later can see.
  int32_t window_begin(int32_t length) const {
    return window_ > 0 ? std::max(0, length - window_ + 1) / plan_.page_size : 0;
  }
  /// A tail of 0 ages a page in the very step that fills it: add_pages, write, age. Otherwise: age, add_pages, write.
  bool ages_after_append() const { return plan_.edges.tail == 0; }

  struct Extent {
    int32_t length = 0;
    int32_t new_length = 0;
    int32_t committed = 0;  ///< Accepted tokens: what they push out of the tail ages.
  };
  /// Pages that a step would take; negative when it frees more than it takes. The needs of several sequences add up
  /// when all of them drop and age before any adds pages.
  Need need(int32_t sequence, const Extent& extent) const;
  /// Lets go of pages that lie before the window of every query from position `length` on.
  void drop_before_window(int32_t sequence, int32_t length);
  /// Moves what falls out of the tail to base pages and lists the copies to be made in `ages`.
  void age(int32_t sequence, const Extent& extent, std::vector<attn::PageAge>& ages);
  /// Adds pages up to the new length.
  void add_pages(int32_t sequence, const Extent& extent);
  /// Where the table puts token `position`.
  int64_t slot(int32_t sequence, int32_t position) const;
  /// Exact pages of this step's ages are free from here on (no-op unless ages_after_append()).
  void end_step();

  /// Makes an empty sequence start with the given whole pages, kNoPage for those behind the window; it holds them from
  /// now on. `aged_end` as a fresh run would have it at the end of these pages.
  void adopt(int32_t sequence, std::span<const int32_t> entries, int32_t aged_end);
  /// One more or one less holder of the page that a table entry names.
  void hold(int32_t entry);
  void release(int32_t entry);
  /// True when nobody but the caller holds the page.
  bool is_last_holder(int32_t entry) const;

  /// Drops pages past `length`; none of them may have aged.
  void cut(int32_t sequence, int32_t length);
  void clear(int32_t sequence);

 private:
  int32_t& entry(int32_t sequence, int32_t page) {
    return table_[static_cast<size_t>(sequence) * static_cast<size_t>(table_stride_) + static_cast<size_t>(page)];
  }
  int32_t entry(int32_t sequence, int32_t page) const {
    return table_[static_cast<size_t>(sequence) * static_cast<size_t>(table_stride_) + static_cast<size_t>(page)];
  }
  int32_t pages_for(int32_t tokens) const { return (tokens + plan_.page_size - 1) / plan_.page_size; }
  void release_from(int32_t sequence, int32_t page);

  attn::EdgePlan plan_;
  int32_t window_ = 0;
  int32_t table_stride_ = 0;
  PageAllocator base_;
  PageAllocator exact_;
  std::vector<int32_t> table_;        ///< [max_sequences, table_stride]
  std::vector<int32_t> aged_end_;     ///< [max_sequences]
  std::vector<int32_t> dropped_end_;  ///< [max_sequences] pages before it lie behind the window
  std::vector<int32_t> release_at_end_;
};

}  // namespace kvant::engine
