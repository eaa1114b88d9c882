#include "engine/cache/sequence_pages.h"

#include <algorithm>

#include "kvant/core/status.h"

namespace kvant::engine {
namespace {

/// Exact pages that one sequence can hold at once: head, tail, a grid cell (two when a page is only free after the step
/// that ages it), one page that is part full, and the retained copies of one tail.
int32_t exact_pages_per_sequence(const attn::EdgePlan& plan, int32_t pages) {
  const auto pages_for = [&](int32_t tokens) { return (tokens + plan.page_size - 1) / plan.page_size; };
  const int32_t cells = plan.edges.tail == 0 ? 2 : 1;
  const int32_t live = plan.head_pages() + pages_for(plan.edges.tail + cells * attn::kPrefillGrid) + 1;
  return std::min(live, pages) + pages_for(plan.edges.tail) + 1;
}

}  // namespace

SequencePages::SequencePages(const Options& options)
    : plan_{.edges = options.edges, .page_size = options.page_size},
      table_stride_((options.max_tokens + options.page_size - 1) / options.page_size),
      base_(options.max_sequences * table_stride_),
      exact_(options.edges.enabled() ? options.max_sequences * exact_pages_per_sequence(plan_, table_stride_) : 0),
      table_(static_cast<size_t>(options.max_sequences) * static_cast<size_t>(table_stride_), attn::kNoPage),
      retained_(table_.size(), attn::kNoPage),
      retained_begin_(static_cast<size_t>(options.max_sequences), 0),
      retained_end_(static_cast<size_t>(options.max_sequences), 0),
      aged_end_(static_cast<size_t>(options.max_sequences), plan_.head_pages()) {
  release_at_end_.reserve(static_cast<size_t>(exact_.num_pages()));
}

std::span<const int32_t> SequencePages::table(int32_t sequence) const {
  return std::span(table_).subspan(static_cast<size_t>(sequence) * static_cast<size_t>(table_stride_),
                                   static_cast<size_t>(table_stride_));
}

int64_t SequencePages::slot(int32_t sequence, int32_t position) const {
  return attn::slot_of(entry(sequence, position / plan_.page_size), plan_.page_size, position % plan_.page_size);
}

SequencePages::Need SequencePages::need(int32_t sequence, const Extent& extent) const {
  const int32_t new_pages = pages_for(extent.new_length) - pages_for(extent.length);
  if (!has_edges()) return {.base_pages = new_pages};
  const int32_t begin = aged_end(sequence);
  const int32_t end = std::max(begin, plan_.aged_end(extent.committed));
  int32_t freed = 0;
  if (!ages_after_append()) {
    const int32_t kept =
        std::min(end, extent.grid_point / plan_.page_size) - std::max(begin, plan_.aged_end(extent.grid_point));
    freed = end - begin - std::max(0, kept);
  }
  return {.base_pages = end - begin, .exact_pages = new_pages - freed};
}

void SequencePages::age(int32_t sequence, const Extent& extent, std::vector<attn::PageAge>& ages) {
  if (!has_edges()) return;
  int32_t& aged = aged_end_[static_cast<size_t>(sequence)];
  int32_t& kept_begin = retained_begin_[static_cast<size_t>(sequence)];
  int32_t& kept_end = retained_end_[static_cast<size_t>(sequence)];
  const int32_t keep_begin = plan_.aged_end(extent.grid_point);
  const int32_t keep_end = extent.grid_point / plan_.page_size;
  drop_retained(sequence, kept_begin, std::min(kept_end, keep_begin));
  kept_begin = keep_begin;
  kept_end = keep_end;
  for (const int32_t end = plan_.aged_end(extent.committed); aged < end; ++aged) {
    const int32_t exact_page = attn::page_id(entry(sequence, aged));
    const int32_t base_page = base_.allocate();
    ages.push_back({.exact_page = exact_page, .base_page = base_page});
    entry(sequence, aged) = base_page;
    if (aged >= keep_begin && aged < keep_end)
      retained(sequence, aged) = exact_page;
    else
      release_exact(exact_page);
  }
}

void SequencePages::add_pages(int32_t sequence, const Extent& extent) {
  for (int32_t page = pages_for(extent.length); page < pages_for(extent.new_length); ++page)
    entry(sequence, page) = has_edges() ? exact_.allocate() | attn::kExactPageBit : base_.allocate();
}

void SequencePages::release_exact(int32_t page) {
  if (ages_after_append())
    release_at_end_.push_back(page);
  else
    exact_.release(page);
}

void SequencePages::end_step() {
  for (const int32_t page : release_at_end_) exact_.release(page);
  release_at_end_.clear();
}

bool SequencePages::can_restore(int32_t sequence, int32_t position) const {
  if (!has_edges()) return true;
  for (int32_t page = plan_.aged_end(position); page < std::min(aged_end(sequence), pages_for(position)); ++page)
    if (retained(sequence, page) == attn::kNoPage) return false;
  return true;
}

void SequencePages::restore(int32_t sequence, int32_t position) {
  KVANT_CHECK(can_restore(sequence, position));
  if (has_edges()) {
    int32_t& aged = aged_end_[static_cast<size_t>(sequence)];
    const int32_t new_aged = std::min(aged, plan_.aged_end(position));
    for (int32_t page = new_aged; page < std::min(aged, pages_for(position)); ++page) {
      release_entry(entry(sequence, page));
      entry(sequence, page) = retained(sequence, page) | attn::kExactPageBit;
      retained(sequence, page) = attn::kNoPage;
    }
    drop_retained(sequence, retained_begin_[static_cast<size_t>(sequence)],
                  retained_end_[static_cast<size_t>(sequence)]);
    aged = new_aged;
  }
  cut(sequence, position);
}

void SequencePages::cut(int32_t sequence, int32_t length) {
  const int32_t keep = pages_for(length);
  KVANT_CHECK(keep >= aged_end(sequence) || !has_edges() || aged_end(sequence) == plan_.head_pages());
  for (int32_t page = keep; page < table_stride_ && entry(sequence, page) != attn::kNoPage; ++page) {
    release_entry(entry(sequence, page));
    entry(sequence, page) = attn::kNoPage;
  }
}

void SequencePages::clear(int32_t sequence) {
  for (int32_t page = 0; page < table_stride_ && entry(sequence, page) != attn::kNoPage; ++page) {
    release_entry(entry(sequence, page));
    entry(sequence, page) = attn::kNoPage;
  }
  drop_retained(sequence, retained_begin_[static_cast<size_t>(sequence)], retained_end_[static_cast<size_t>(sequence)]);
  retained_begin_[static_cast<size_t>(sequence)] = retained_end_[static_cast<size_t>(sequence)] = 0;
  aged_end_[static_cast<size_t>(sequence)] = plan_.head_pages();
}

void SequencePages::release_entry(int32_t entry) {
  if (attn::is_exact_page(entry))
    exact_.release(attn::page_id(entry));
  else
    base_.release(entry);
}

void SequencePages::drop_retained(int32_t sequence, int32_t begin, int32_t end) {
  for (int32_t page = begin; page < end; ++page) {
    int32_t& copy = retained(sequence, page);
    if (copy != attn::kNoPage) exact_.release(copy);
    copy = attn::kNoPage;
  }
}

}  // namespace kvant::engine
