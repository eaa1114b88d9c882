#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/page_allocator.h"
#include "kvant/attn/append.h"
#include "kvant/attn/edges.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::engine {

/// The page table of one layer group over all sequences, and the two pools it draws from. Knows positions and pages,
/// not bytes.
///
/// Pages age in order. When an aged page belongs to the exact tail before the newest grid point that the prompt
/// reached, its exact copy is retained, so that the sequence can be cut back to that point and look as a fresh run
/// would.
class SequencePages {
 public:
  struct Options {
    attn::ExactEdges edges;
    int32_t page_size = 16;
    int32_t max_sequences = 1;
    int32_t max_tokens = 0;  ///< Per sequence.
  };
  explicit SequencePages(const Options& options);

  const attn::EdgePlan& edge_plan() const { return plan_; }
  bool has_edges() const { return plan_.edges.enabled(); }
  const PageAllocator& base() const { return base_; }
  const PageAllocator& exact() const { return exact_; }
  /// Entries between the tables of two sequences.
  int32_t table_stride() const { return table_stride_; }
  std::span<const int32_t> table(int32_t sequence) const;
  int32_t aged_end(int32_t sequence) const { return aged_end_[static_cast<size_t>(sequence)]; }
  /// A tail of 0 ages a page in the very step that fills it: add_pages, write, age. Otherwise: age, add_pages, write.
  bool ages_after_append() const { return plan_.edges.tail == 0; }

  struct Need {
    int32_t base_pages = 0;
    int32_t exact_pages = 0;
  };
  struct Extent {
    int32_t length = 0;
    int32_t new_length = 0;
    int32_t committed = 0;   ///< Accepted tokens: what they push out of the tail ages.
    int32_t grid_point = 0;  ///< The newest grid point that this sequence's prompt chunks have reached.
  };
  /// Pages that a step would take; negative when it frees more exact pages than it takes.
  Need need(int32_t sequence, const Extent& extent) const;
  /// Moves what falls out of the tail to base pages and lists the copies to be made in `ages`.
  void age(int32_t sequence, const Extent& extent, std::vector<attn::PageAge>& ages);
  /// Adds pages up to the new length.
  void add_pages(int32_t sequence, const Extent& extent);
  /// Where the table puts token `position`.
  int64_t slot(int32_t sequence, int32_t position) const;
  /// Exact pages of this step's ages are free from here on (no-op unless ages_after_append()).
  void end_step();

  /// True when the sequence can be cut back to grid point `position` with the bytes of a fresh run.
  bool can_restore(int32_t sequence, int32_t position) const;
  void restore(int32_t sequence, int32_t position);
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
  int32_t& retained(int32_t sequence, int32_t page) {
    return retained_[static_cast<size_t>(sequence) * static_cast<size_t>(table_stride_) + static_cast<size_t>(page)];
  }
  int32_t retained(int32_t sequence, int32_t page) const {
    return retained_[static_cast<size_t>(sequence) * static_cast<size_t>(table_stride_) + static_cast<size_t>(page)];
  }
  int32_t pages_for(int32_t tokens) const { return (tokens + plan_.page_size - 1) / plan_.page_size; }
  void release_entry(int32_t entry);
  void release_exact(int32_t page);
  void drop_retained(int32_t sequence, int32_t begin, int32_t end);

  attn::EdgePlan plan_;
  int32_t table_stride_ = 0;
  PageAllocator base_;
  PageAllocator exact_;
  std::vector<int32_t> table_;           ///< [max_sequences, table_stride]
  std::vector<int32_t> retained_;        ///< [max_sequences, table_stride] exact copies of aged pages
  std::vector<int32_t> retained_begin_;  ///< [max_sequences] retained copies lie in [begin, end)
  std::vector<int32_t> retained_end_;
  std::vector<int32_t> aged_end_;  ///< [max_sequences]
  std::vector<int32_t> release_at_end_;
};

}  // namespace kvant::engine
