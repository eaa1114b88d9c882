#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/cache/kv_cache_impl.h"

namespace kvant::engine {

void KvCacheSet::Impl::stand_on(Sequence& sequence, PrefixTree::NodeId node) {
  if (node != PrefixTree::kNone) prefixes.add_user(node);
  if (sequence.prefix != PrefixTree::kNone) prefixes.remove_user(sequence.prefix);
  sequence.prefix = node;
}

/// The page table of a prefix, per group; false when pages are missing that its continuation would read.
bool KvCacheSet::Impl::gather_prefix(PrefixTree::NodeId id, std::vector<std::vector<int32_t>>& entries) const {
  const int32_t depth = prefixes.node(id).depth;
  const int32_t num_pages = depth * prefix_block() / options.page_size;
  entries.resize(groups.size());
  for (std::vector<int32_t>& table : entries) table.assign(static_cast<size_t>(num_pages), attn::kNoPage);
  for (PrefixTree::NodeId at_id = id; at_id != PrefixTree::kNone; at_id = prefixes.node(at_id).parent) {
    const PrefixTree::Node& node = prefixes.node(at_id);
    for (size_t g = 0; g < groups.size(); ++g) {
      // What a block holds beyond its final pages is the exact tail before its own end.
      const int32_t begin = final_pages(groups[g], node.depth - 1);
      const int32_t end = at_id == id ? num_pages : final_pages(groups[g], node.depth);
      std::copy_n(node.entries[g].begin(), end - begin, entries[g].begin() + begin);
    }
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto seen = std::min(num_pages, groups[g].pages.window_begin(depth * prefix_block()));
    std::fill_n(entries[g].begin(), seen, attn::kNoPage);
    if (std::find(entries[g].begin() + seen, entries[g].end(), attn::kNoPage) != entries[g].end()) return false;
  }
  return true;
}

int32_t KvCacheSet::reuse_prefix(SequenceId id, std::span<const int32_t> tokens, std::string_view salt) {
  Impl& impl = *impl_;
  Sequence& sequence = impl.at(id);
  KVANT_CHECK(sequence.length == 0);
  if (!impl.options.prefix_cache) return 0;
  const auto block = static_cast<size_t>(impl.prefix_block());
  PrefixTree::NodeId found = PrefixTree::kNone;
  // One token at least is left to be run: its logits are wanted.
  for (size_t end = block; end < tokens.size(); end += block) {
    const PrefixTree::NodeId next = impl.prefixes.find(found, salt, tokens.subspan(end - block, block));
    if (next == PrefixTree::kNone) break;
    found = next;
  }
  std::vector<std::vector<int32_t>> entries;
  while (found != PrefixTree::kNone && !impl.gather_prefix(found, entries)) found = impl.prefixes.node(found).parent;
  if (found == PrefixTree::kNone) return 0;
  impl.prefixes.touch(found);
  impl.stand_on(sequence, found);
  sequence.length = sequence.grid_end = impl.prefixes.node(found).depth * impl.prefix_block();
  for (size_t g = 0; g < impl.groups.size(); ++g) {
    SequencePages& pages = impl.groups[g].pages;
    pages.adopt(id, entries[g], pages.edge_plan().aged_end(sequence.length));
  }
  return sequence.length;
}

bool KvCacheSet::Impl::can_publish(SequenceId id, int32_t blocks) const {
  const Sequence& sequence = at(id);
  const int32_t end = blocks * prefix_block();
  if (!has_edges) return end <= sequence.length;
  // The tables show the state that a prompt finds at this grid point from when its next cell starts until later pages
  // age.
  return end <= sequence.grid_end && std::all_of(groups.begin(), groups.end(), [&](const Group& group) {
           const attn::EdgePlan& plan = group.pages.edge_plan();
           return !group.pages.has_edges() ||
                  group.pages.aged_end(id) == std::max(plan.aged_end(end), group.pages.dropped_end(id));
         });
}

PrefixTree::NodeId KvCacheSet::Impl::publish_block(SequenceId id, std::span<const int32_t> tokens,
                                                   std::string_view salt) {
  const PrefixTree::NodeId parent = at(id).prefix;
  const int32_t depth = parent == PrefixTree::kNone ? 1 : prefixes.node(parent).depth + 1;
  const int32_t num_pages = depth * prefix_block() / options.page_size;
  std::vector<std::vector<int32_t>> entries(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const int32_t begin = final_pages(groups[g], depth - 1);
    const auto table = groups[g].pages.table(id);
    entries[g].assign(table.begin() + begin, table.begin() + num_pages);
    for (const int32_t entry : entries[g])
      if (entry != attn::kNoPage) groups[g].pages.hold(entry);
  }
  const PrefixTree::NodeId added = prefixes.add(parent, salt, tokens, std::move(entries));
  prefixes.node(added).has_tail = has_edges;
  return added;
}

void KvCacheSet::publish_prefix(SequenceId id, std::span<const int32_t> tokens, std::string_view salt) {
  Impl& impl = *impl_;
  if (!impl.options.prefix_cache) return;
  Sequence& sequence = impl.at(id);
  const auto block = static_cast<size_t>(impl.prefix_block());
  while (true) {
    const int32_t blocks = sequence.prefix == PrefixTree::kNone ? 0 : impl.prefixes.node(sequence.prefix).depth;
    if (!impl.can_publish(id, blocks + 1)) return;
    const auto part = tokens.subspan(static_cast<size_t>(blocks) * block, block);
    PrefixTree::NodeId next = impl.prefixes.find(sequence.prefix, salt, part);
    if (next == PrefixTree::kNone) next = impl.publish_block(id, part, salt);
    impl.stand_on(sequence, next);
  }
}

bool KvCacheSet::Impl::evict_prefix() {
  const PrefixTree::NodeId id = prefixes.evictable();
  if (id == PrefixTree::kNone) return false;
  for (size_t g = 0; g < groups.size(); ++g)
    for (const int32_t entry : prefixes.node(id).entries[g])
      if (entry != attn::kNoPage) groups[g].pages.release(entry);
  prefixes.remove(id);
  return true;
}

bool KvCacheSet::Impl::drop_exact_tail() {
  const PrefixTree::NodeId id = prefixes.oldest_tail();
  if (id == PrefixTree::kNone) return false;
  PrefixTree::Node& node = prefixes.node(id);
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<int32_t>& entries = node.entries[g];
    const int32_t kept = final_pages(groups[g], node.depth) - final_pages(groups[g], node.depth - 1);
    for (auto entry = entries.begin() + kept; entry != entries.end(); ++entry) {
      if (*entry != attn::kNoPage) groups[g].pages.release(*entry);
      *entry = attn::kNoPage;
    }
  }
  node.has_tail = false;
  return true;
}

void KvCacheSet::clear_prefixes() {
  while (impl_->evict_prefix()) {
  }
}

int32_t KvCacheSet::num_prefix_blocks() const { return impl_->prefixes.num_nodes(); }

Status KvCacheSet::check_fits_alone(int32_t length) const {
  for (const Group& group : impl_->groups) {
    const auto need = SequencePages::most_pages(group.pages.edge_plan(), group.pages.window(), length);
    const int32_t base = group.pages.base().num_pages(), exact = group.pages.exact().num_pages();
    if (need.base_pages <= base && need.exact_pages <= exact) continue;
    return {
        StatusCode::kResourceExhausted,
        fmt::format("a sequence of {} tokens needs {} base and {} exact pages of {} tokens; the KV cache has {} and "
                    "{}",
                    length, need.base_pages, need.exact_pages, impl_->options.page_size, base, exact)};
  }
  return {};
}

bool KvCacheSet::make_token_room(int64_t tokens) {
  const auto enough = [&](const Group& group) {
    // A window lets go of pages as it moves: it never stands in the way for long.
    return group.pages.window() > 0 || int64_t{group.pages.base().num_free()} * impl_->options.page_size >= tokens;
  };
  while (!std::all_of(impl_->groups.begin(), impl_->groups.end(), enough))
    if (!impl_->evict_prefix()) return false;
  return true;
}

}  // namespace kvant::engine
