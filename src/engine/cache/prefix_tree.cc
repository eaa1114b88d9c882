#include "engine/cache/prefix_tree.h"

#include <algorithm>

#include "kvant/core/status.h"

namespace kvant::engine {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

}  // namespace

uint64_t PrefixTree::hash_of(NodeId parent, std::string_view salt, std::span<const int32_t> tokens) const {
  uint64_t hash = parent == kNone ? 1 : node(parent).hash;
  if (parent == kNone)
    for (const char c : salt) hash = mix(hash, static_cast<unsigned char>(c));
  for (const int32_t token : tokens) hash = mix(hash, static_cast<uint32_t>(token));
  return hash;
}

PrefixTree::NodeId PrefixTree::find(NodeId parent, std::string_view salt, std::span<const int32_t> tokens) const {
  const auto [begin, end] = by_hash_.equal_range(hash_of(parent, salt, tokens));
  for (auto it = begin; it != end; ++it) {
    const Node& candidate = node(it->second);
    if (candidate.parent == parent && (parent != kNone || candidate.salt == salt) &&
        std::equal(tokens.begin(), tokens.end(), candidate.tokens.begin(), candidate.tokens.end()))
      return it->second;
  }
  return kNone;
}

PrefixTree::NodeId PrefixTree::add(NodeId parent, std::string_view salt, std::span<const int32_t> tokens,
                                   std::vector<std::vector<int32_t>> entries) {
  const uint64_t hash = hash_of(parent, salt, tokens);
  NodeId id = static_cast<NodeId>(nodes_.size());
  if (free_.empty()) {
    nodes_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Node& added = node(id) = {.parent = parent,
                            .depth = parent == kNone ? 1 : node(parent).depth + 1,
                            .salt = parent == kNone ? std::string(salt) : std::string(),
                            .tokens = {tokens.begin(), tokens.end()},
                            .entries = std::move(entries),
                            .last_use = ++clock_,
                            .hash = hash};
  by_hash_.emplace(hash, id);
  evictable_.emplace(added.last_use, id);
  if (parent != kNone) change(parent, node(parent).num_children, 1);
  return id;
}

void PrefixTree::change(NodeId id, int32_t& count, int32_t by) {
  const bool before = is_evictable(node(id));
  count += by;
  const bool after = is_evictable(node(id));
  if (before && !after) evictable_.erase({node(id).last_use, id});
  if (!before && after) evictable_.emplace(node(id).last_use, id);
}

void PrefixTree::touch(NodeId id) {
  ++clock_;
  for (; id != kNone; id = node(id).parent) {
    if (is_evictable(node(id))) {
      evictable_.erase({node(id).last_use, id});
      evictable_.emplace(clock_, id);
    }
    node(id).last_use = clock_;
  }
}

void PrefixTree::add_user(NodeId id) { change(id, node(id).num_users, 1); }
void PrefixTree::remove_user(NodeId id) { change(id, node(id).num_users, -1); }

PrefixTree::NodeId PrefixTree::oldest_tail() const {
  const auto before = [](const Node& a, const Node& b) {
    return std::pair(a.num_children == 0, a.last_use) < std::pair(b.num_children == 0, b.last_use);
  };
  NodeId oldest = kNone;
  for (size_t id = 0; id < nodes_.size(); ++id)
    if (nodes_[id].has_tail && (oldest == kNone || before(nodes_[id], node(oldest)))) oldest = static_cast<NodeId>(id);
  return oldest;
}

void PrefixTree::remove(NodeId id) {
  Node& gone = node(id);
  KVANT_CHECK(is_evictable(gone));
  evictable_.erase({gone.last_use, id});
  const auto [begin, end] = by_hash_.equal_range(gone.hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& item) { return item.second == id; }));
  const NodeId parent = gone.parent;
  gone = {};
  free_.push_back(id);
  if (parent != kNone) change(parent, node(parent).num_children, -1);
}

}  // namespace kvant::engine
