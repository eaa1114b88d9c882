#include "engine/cache/kv_pools.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "engine/cache/sequence_pages.h"

namespace kvant::engine {
namespace {

constexpr int64_t kPageAlignment = 64;
/// Cached prefixes per sequence whose exact tails the pool has room for.
constexpr int32_t kPrefixTailsPerSequence = 4;
/// Exact pages of all sequences may take this part of a budget before sequences are given up.
constexpr int64_t kExactShare = 2;
/// What `auto` takes of the free memory at most; untouched pages cost nothing.
constexpr double kAutoFraction = 0.8;

attn::EdgePlan edge_plan(const LayerGroup& group, const PoolShape& shape) {
  return {.edges = group.spec.edges, .page_size = shape.page_size};
}

struct PoolBytes {
  int64_t base = 0;
  int64_t exact = 0;
};

PoolBytes bytes_by_pool(std::span<const LayerGroup> groups, const PoolShape& shape) {
  PoolBytes bytes;
  for (const LayerGroup& group : groups) {
    const PoolPages pages = pool_pages(group, shape);
    bytes.base += int64_t{pages.base} * page_stride(group.desc.layout) * std::ssize(group.layers);
    if (pages.exact > 0)
      bytes.exact += int64_t{pages.exact} * page_stride(group.desc.layout.exact()) * std::ssize(group.layers);
  }
  return bytes;
}

std::string readable(int64_t bytes) {
  constexpr double kMib = 1024.0 * 1024.0;
  const double mib = static_cast<double>(bytes) / kMib;
  return mib < 1024.0 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024.0);
}

std::optional<int64_t> number_in(const char* file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

std::string describe(const PoolShape& shape, const PoolBytes& bytes, std::string_view limit) {
  std::string out = fmt::format("KV memory {} = {} tokens x {} bytes", readable(bytes.base + bytes.exact),
                                shape.pool_tokens, bytes.base / std::max<int64_t>(1, shape.pool_tokens));
  if (bytes.exact > 0) out += fmt::format(" + {} of exact pages", readable(bytes.exact));
  return out + fmt::format(", for {} sequences of up to {} tokens{}", shape.max_sequences, shape.max_tokens, limit);
}

}  // namespace

int64_t page_stride(const attn::KvLayout& layout) {
  return (layout.page_bytes() + kPageAlignment - 1) / kPageAlignment * kPageAlignment;
}

PoolPages pool_pages(const LayerGroup& group, const PoolShape& shape) {
  const attn::EdgePlan plan = edge_plan(group, shape);
  const auto pages_for = [&](int64_t tokens) { return (tokens + shape.page_size - 1) / shape.page_size; };
  const auto most = SequencePages::most_pages(plan, group.desc.window, shape.max_tokens);
  const int64_t all_sequences = pages_for(shape.max_tokens) * shape.max_sequences;
  int64_t base = shape.pool_tokens > 0 ? pages_for(shape.pool_tokens) : all_sequences;
  // A window bounds what a sequence holds.
  if (group.desc.window > 0 && !shape.prefix_cache)
    base = std::min(base, int64_t{most.base_pages} * shape.max_sequences);
  PoolPages pages{.base = static_cast<int32_t>(std::min<int64_t>(base, attn::kExactPageBit - 1)), .exact = 0};
  if (!plan.edges.enabled()) return pages;
  pages.exact = most.exact_pages * shape.max_sequences;
  if (shape.prefix_cache)
    pages.exact += static_cast<int32_t>(pages_for(plan.edges.tail)) * kPrefixTailsPerSequence * shape.max_sequences;
  return pages;
}

int64_t pool_bytes(std::span<const LayerGroup> groups, const PoolShape& shape) {
  const PoolBytes bytes = bytes_by_pool(groups, shape);
  return bytes.base + bytes.exact;
}

Result<KvBudget> plan_kv_budget(std::span<const LayerGroup> groups, PoolShape shape, const KvMemory& memory,
                                int64_t free_bytes) {
  const auto finish = [&](std::string_view limit) {
    const PoolBytes bytes = bytes_by_pool(groups, shape);
    return KvBudget{.shape = shape, .bytes = bytes.base + bytes.exact, .arithmetic = describe(shape, bytes, limit)};
  };
  const int64_t most_tokens = int64_t{shape.max_sequences} * shape.max_tokens;
  int64_t limit = 0;
  std::string source;
  switch (memory.unit) {
    case KvMemory::Unit::kTokens:
      shape.pool_tokens = std::max<int64_t>(1, static_cast<int64_t>(memory.value));
      return finish("");
    case KvMemory::Unit::kBytes: limit = static_cast<int64_t>(memory.value); break;
    case KvMemory::Unit::kAuto:
    case KvMemory::Unit::kFraction: {
      const double fraction = memory.unit == KvMemory::Unit::kAuto ? kAutoFraction : memory.value;
      limit = static_cast<int64_t>(fraction * static_cast<double>(free_bytes));
      source = fmt::format("; at most {} x {} free", fraction, readable(free_bytes));
      break;
    }
  }
  shape.pool_tokens = shape.page_size;
  while (shape.max_sequences > 1 && bytes_by_pool(groups, shape).exact > limit / kExactShare) --shape.max_sequences;
  const auto fits = [&](int64_t pages) {
    PoolShape tried = shape;
    tried.pool_tokens = pages * shape.page_size;
    return pool_bytes(groups, tried) <= limit;
  };
  if (!fits(1)) {
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("a KV budget of {} does not hold one page of one sequence: {} are needed{}",
                               readable(limit), readable(pool_bytes(groups, shape)), source));
  }
  // Cached prefixes can use more than running sequences do; without them, or unasked, that would be waste.
  const bool capped = !shape.prefix_cache || memory.unit == KvMemory::Unit::kAuto;
  const int64_t cap = capped ? most_tokens : std::numeric_limits<int32_t>::max();
  int64_t low = 1, high = (cap + shape.page_size - 1) / shape.page_size;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  shape.pool_tokens = low * shape.page_size;
  return finish(source);
}

int64_t free_memory_bytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream info("/proc/meminfo");
  for (std::string name, unit; info >> name;) {
    int64_t kib = 0;
    if (name == "MemAvailable:" && info >> kib) available = kib * 1024;
    std::getline(info, unit);
  }
  // A container may have less than the machine.
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, std::max<int64_t>(0, *limit - *used));
  return available;
}

}  // namespace kvant::engine
