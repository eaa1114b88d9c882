#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/cache/layer_groups.h"
#include "kvant/attn/kv_layout.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

/// How many sequences and tokens the pools of a cache are made for.
struct PoolShape {
  int32_t page_size = 16;
  int32_t max_sequences = 1;
  int32_t max_tokens = 0;     ///< Per sequence.
  int64_t pool_tokens = 0;    ///< Of all sequences together; 0 = max_sequences * max_tokens.
  bool prefix_cache = false;  ///< Exact tails of cached prefixes need pages too.
};

struct PoolPages {
  int32_t base = 0;
  int32_t exact = 0;
};
/// Pages of a layer group's two pools. The exact pool lets every sequence run; the base pool holds the tokens.
PoolPages pool_pages(const LayerGroup& group, const PoolShape& shape);

/// Bytes from one page of a pool to the next.
int64_t page_stride(const attn::KvLayout& layout);

/// Bytes of the pools of all groups.
int64_t pool_bytes(std::span<const LayerGroup> groups, const PoolShape& shape);

/// What a budget buys: fewer tokens or, when even one sequence per request does not fit, fewer sequences.
struct KvBudget {
  PoolShape shape;
  int64_t bytes = 0;
  std::string arithmetic;  ///< One line for people.
};

/// `shape` says what is wanted at most. kResourceExhausted names the least that would do.
Result<KvBudget> plan_kv_budget(std::span<const LayerGroup> groups, PoolShape shape, const KvMemory& memory,
                                int64_t free_bytes);

/// Memory that this machine could still give to a process.
int64_t free_memory_bytes();

}  // namespace kvant::engine
