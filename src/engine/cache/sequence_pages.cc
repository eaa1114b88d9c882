#include "engine/cache/sequence_pages.h"

#include <algorithm>

#include "kvant/core/status.h"

namespace kvant::engine {

SequencePages::Need SequencePages::most_pages(const attn::EdgePlan& plan, int32_t window, int32_t length) {
  const auto pages_for = [&](int32_t tokens) { return (tokens + plan.page_size - 1) / plan.page_size; };
  // Pages leave the window at the start of a step, so a whole cell may stand before it.
  const int32_t seen = window > 0 ? std::min(length, window + attn::kPrefillGrid + plan.page_size) : length;
  if (!plan.edges.enabled()) return {.base_pages = pages_for(seen)};
  // Head, tail, a grid cell (two when a page is only free after the step that ages it), one page that is part full.
  const int32_t cells = plan.edges.tail == 0 ? 2 : 1;
  const int32_t exact = plan.head_pages() + pages_for(plan.edges.tail + cells * attn::kPrefillGrid) + 1;
  return {.base_pages =
              std::max(0, std::min(pages_for(seen), plan.aged_end(length)) - (window > 0 ? 0 : plan.head_pages())),
          .exact_pages = std::min(pages_for(length), exact)};
}

SequencePages::SequencePages(const Options& options)
    : plan_{.edges = options.edges, .page_size = options.page_size},
      window_(options.window),
      table_stride_((options.max_tokens + options.page_size - 1) / options.page_size),
      base_(options.base_pages),
      exact_(options.exact_pages),
      table_(static_cast<size_t>(options.max_sequences) * static_cast<size_t>(table_stride_), attn::kNoPage),
      aged_end_(static_cast<size_t>(options.max_sequences), plan_.head_pages()),
      dropped_end_(static_cast<size_t>(options.max_sequences), 0) {
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
  Need need;
  const int32_t old_pages = pages_for(extent.length);
  (has_edges() ? need.exact_pages : need.base_pages) = pages_for(extent.new_length) - old_pages;
  const int32_t window_end = std::min(window_begin(extent.length), old_pages);
  for (int32_t page = dropped_end_[static_cast<size_t>(sequence)]; page < window_end; ++page) {
    const int32_t dropped = entry(sequence, page);
    if (is_last_holder(dropped)) --(attn::is_exact_page(dropped) ? need.exact_pages : need.base_pages);
  }
  if (!has_edges()) return need;
  const int32_t end = plan_.aged_end(extent.committed);
  for (int32_t page = std::max(aged_end(sequence), window_end); page < end; ++page) {
    ++need.base_pages;
    if (!ages_after_append() && is_last_holder(entry(sequence, page))) --need.exact_pages;
  }
  return need;
}

void SequencePages::drop_before_window(int32_t sequence, int32_t length) {
  int32_t& dropped = dropped_end_[static_cast<size_t>(sequence)];
  for (const int32_t end = std::min(window_begin(length), pages_for(length)); dropped < end; ++dropped) {
    release(entry(sequence, dropped));
    entry(sequence, dropped) = attn::kNoPage;
  }
  int32_t& aged = aged_end_[static_cast<size_t>(sequence)];
  if (has_edges()) aged = std::max(aged, dropped);
}

void SequencePages::age(int32_t sequence, const Extent& extent, std::vector<attn::PageAge>& ages) {
  if (!has_edges()) return;
  int32_t& aged = aged_end_[static_cast<size_t>(sequence)];
  for (const int32_t end = plan_.aged_end(extent.committed); aged < end; ++aged) {
    const int32_t exact_entry = entry(sequence, aged);
    const int32_t base_page = base_.allocate();
    ages.push_back({.exact_page = attn::page_id(exact_entry), .base_page = base_page});
    entry(sequence, aged) = base_page;
    if (ages_after_append())
      release_at_end_.push_back(exact_entry);
    else
      release(exact_entry);
  }
}

void SequencePages::add_pages(int32_t sequence, const Extent& extent) {
  for (int32_t page = pages_for(extent.length); page < pages_for(extent.new_length); ++page)
    entry(sequence, page) = has_edges() ? exact_.allocate() | attn::kExactPageBit : base_.allocate();
}

void SequencePages::end_step() {
  for (const int32_t entry : release_at_end_) release(entry);
  release_at_end_.clear();
}

void SequencePages::adopt(int32_t sequence, std::span<const int32_t> entries, int32_t aged_end) {
  for (size_t page = 0; page < entries.size(); ++page) {
    if (entries[page] != attn::kNoPage) hold(entries[page]);
    entry(sequence, static_cast<int32_t>(page)) = entries[page];
  }
  int32_t& dropped = dropped_end_[static_cast<size_t>(sequence)];
  while (dropped < std::ssize(entries) && entries[static_cast<size_t>(dropped)] == attn::kNoPage) ++dropped;
  aged_end_[static_cast<size_t>(sequence)] = aged_end;
}

void SequencePages::hold(int32_t entry) {
  if (attn::is_exact_page(entry))
    exact_.add_holder(attn::page_id(entry));
  else
    base_.add_holder(entry);
}

void SequencePages::release(int32_t entry) {
  if (attn::is_exact_page(entry))
    exact_.release(attn::page_id(entry));
  else
    base_.release(entry);
}

bool SequencePages::is_last_holder(int32_t entry) const {
  return (attn::is_exact_page(entry) ? exact_.holders(attn::page_id(entry)) : base_.holders(entry)) == 1;
}

void SequencePages::cut(int32_t sequence, int32_t length) {
  const int32_t keep = pages_for(length);
  KVANT_CHECK(keep >= dropped_end_[static_cast<size_t>(sequence)]);
  KVANT_CHECK(keep >= aged_end(sequence) || !has_edges() || aged_end(sequence) == plan_.head_pages());
  release_from(sequence, keep);
}

void SequencePages::clear(int32_t sequence) {
  release_from(sequence, dropped_end_[static_cast<size_t>(sequence)]);
  dropped_end_[static_cast<size_t>(sequence)] = 0;
  aged_end_[static_cast<size_t>(sequence)] = plan_.head_pages();
}

void SequencePages::release_from(int32_t sequence, int32_t page) {
  for (; page < table_stride_ && entry(sequence, page) != attn::kNoPage; ++page) {
    release(entry(sequence, page));
    entry(sequence, page) = attn::kNoPage;
  }
}

}  // namespace kvant::engine
