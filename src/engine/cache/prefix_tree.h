#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvant::engine {

/// What the prefix cache knows: a tree of token blocks with the page-table entries that each adds. Knows nothing of
/// pools; whoever adds or removes a node holds and releases its pages.
///
/// A block is found by hash and then compared token by token, so a collision never gives wrong pages. Trees of
/// different salts share nothing.
class PrefixTree {
 public:
  using NodeId = int32_t;
  static constexpr NodeId kNone = -1;

  struct Node {
    NodeId parent = kNone;
    int32_t depth = 0;  ///< Blocks from the root to the end of this one.
    std::string salt;   ///< Of first blocks; their descendants have it by descent.
    std::vector<int32_t> tokens;
    std::vector<std::vector<int32_t>> entries;  ///< Per layer group.
    bool has_tail = false;  ///< Set by whoever holds pages that only a continuation from this very block reads.
    int32_t num_children = 0;
    int32_t num_users = 0;  ///< Sequences that stand here; such a node is not evicted.
    uint64_t last_use = 0;
    uint64_t hash = 0;
  };

  /// The block after `parent` (kNone = first) with these tokens, or kNone.
  NodeId find(NodeId parent, std::string_view salt, std::span<const int32_t> tokens) const;
  NodeId add(NodeId parent, std::string_view salt, std::span<const int32_t> tokens,
             std::vector<std::vector<int32_t>> entries);
  Node& node(NodeId id) { return nodes_[static_cast<size_t>(id)]; }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }

  /// Marks a node and what leads to it as just used.
  void touch(NodeId id);
  void add_user(NodeId id);
  void remove_user(NodeId id);

  /// The least recently used node without children and users, or kNone.
  NodeId evictable() const { return evictable_.empty() ? kNone : evictable_.begin()->second; }
  void remove(NodeId id);
  /// The least recently used node with a tail, of those with children if there are any, or kNone. Looks at all nodes.
  NodeId oldest_tail() const;
  int32_t num_nodes() const { return static_cast<int32_t>(nodes_.size() - free_.size()); }

 private:
  uint64_t hash_of(NodeId parent, std::string_view salt, std::span<const int32_t> tokens) const;
  bool is_evictable(const Node& node) const { return node.num_children == 0 && node.num_users == 0; }
  void change(NodeId id, int32_t& count, int32_t by);

  std::vector<Node> nodes_;
  std::vector<NodeId> free_;
  std::unordered_multimap<uint64_t, NodeId> by_hash_;
  std::set<std::pair<uint64_t, NodeId>> evictable_;  ///< (last use, node)
  uint64_t clock_ = 0;
};

}  // namespace kvant::engine
