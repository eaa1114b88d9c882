#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/device_memory.h"
#include "engine/cache/attention_plans.h"
#include "engine/cache/kv_cache_set.h"
#include "engine/cache/kv_pools.h"
#include "engine/cache/prefix_tree.h"
#include "engine/cache/sequence_pages.h"

namespace kvant::engine {

struct KvCacheSet::Sequence {
  bool alive = false;
  int32_t length = 0;
  int32_t grid_end = 0;                           ///< Leading tokens that prompt chunks wrote on the prefill grid.
  PrefixTree::NodeId prefix = PrefixTree::kNone;  ///< The end of what it shares with the prefix cache.
};

struct KvCacheSet::Layer {
  size_t group = 0;
  DeviceBuffer base_memory;
  DeviceBuffer exact_memory;
  DeviceBuffer constants;  ///< Scales and conditioner.
  attn::KvCacheView view;
};

struct KvCacheSet::Group {
  LayerGroup info;
  SequencePages pages;
  // One step's data.
  std::vector<attn::PageAge> ages;
  Mirrored<int64_t> slots;         ///< [max_tokens]
  Mirrored<attn::PageAge> listed;  ///< `ages`, then padding up to num_ages
  Mirrored<int32_t> table;         ///< [max_requests, table_stride]
  Mirrored<attn::SharedRun> runs;  ///< [max_requests + 1] where pages can be shared
  int64_t num_ages = 0;
  int32_t num_sharing = 0;  ///< Requests of the step that share pages.
};

struct KvCacheSet::Impl {
  KvCacheOptions options;
  attn::AttnLimits limits;
  std::vector<LayerGroup> infos;
  std::vector<Group> groups;
  std::vector<Layer> layers;
  std::vector<Sequence> sequences;
  Stream stream;
  AttentionPlans plans;
  bool has_edges = false;
  bool may_share = false;  ///< Several sequences may hold a page, and attention may be told.
  PrefixTree prefixes;
  // One step's data.
  std::vector<StepRow> step;
  MirroredBuffer tables;
  Mirrored<int32_t> q_offsets;  ///< [max_requests + 1]
  Mirrored<int32_t> kv_lens;    ///< [max_requests]
  int32_t step_requests = 0;    ///< Padding included.
  int32_t step_tokens = 0;      ///< Likewise.
  int32_t step_query_len = 0;   ///< Of the longest row.

  Sequence& at(SequenceId id) {
    KVANT_CHECK(id >= 0 && id < std::ssize(sequences) && sequences[static_cast<size_t>(id)].alive);
    return sequences[static_cast<size_t>(id)];
  }
  const Sequence& at(SequenceId id) const {
    KVANT_CHECK(id >= 0 && id < std::ssize(sequences) && sequences[static_cast<size_t>(id)].alive);
    return sequences[static_cast<size_t>(id)];
  }
  SequencePages::Extent extent(const StepRow& row) const {
    const Sequence& sequence = at(row.sequence);
    return {.length = sequence.length,
            .new_length = sequence.length + row.num_tokens,
            .committed = row.phase == RowPhase::kDecode ? sequence.length + 1
                                                        : attn::EdgePlan::prefill_committed(sequence.length)};
  }
  PoolShape pool_shape() const {
    return {.page_size = options.page_size,
            .max_sequences = options.max_sequences,
            .max_tokens = options.max_tokens,
            .pool_tokens = options.pool_tokens,
            .prefix_cache = options.prefix_cache};
  }
  int32_t prefix_block() const { return has_edges ? attn::kPrefillGrid : options.page_size; }
  /// Leading pages of a prefix of `blocks` that will never change: exact head, aged pages, any page without edges.
  int32_t final_pages(const Group& group, int32_t blocks) const {
    const int32_t pages = blocks * prefix_block() / options.page_size;
    if (!group.pages.has_edges()) return pages;
    return std::min(pages, group.pages.edge_plan().aged_end(blocks * prefix_block()));
  }
  bool gather_prefix(PrefixTree::NodeId node, std::vector<std::vector<int32_t>>& entries) const;
  bool can_publish(SequenceId id, int32_t blocks) const;
  PrefixTree::NodeId publish_block(SequenceId id, std::span<const int32_t> tokens, std::string_view salt);
  void stand_on(Sequence& sequence, PrefixTree::NodeId node);
  bool evict_prefix();
  /// Gives up the exact pages that a continuation from some cached block would need: such a continuation then starts at
  /// an earlier block. Blocks in use have such pages too, one set per block that a long prompt went through.
  bool drop_exact_tail();
  Status check_step(std::span<const StepRow> rows) const;
  /// The first group short of pages for a step, or null.
  const Group* group_short_of_pages(std::span<const StepRow> rows, SequencePages::Need& need) const;
  Status create_groups(const ModelConfig& config);
  Status create_layers(const ModelConfig& config);
  Status create_constants(Layer& layer, const LayerGroup& group, const LayerProfile& profile);
  Status create_scales(Layer& layer, const LayerGroup& group, const CheckpointScales::Layer& scales);
  Status create_tables();
  void fill_tables(std::span<const StepRow> rows);
  void pad_tables(StepPadding padding);
  void find_runs();
};

}  // namespace kvant::engine
