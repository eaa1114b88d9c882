#include "attn/cpu/schedule.h"

#include <algorithm>

#include "attn/cpu/attention_kernels.h"

namespace kvant::attn::cpu {
namespace {

// Tasks that a thread should have, if the whole batch were cut like its first or like its last quarter: large ones cost
// less, and small ones at the end let threads end together.
constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kLastTasksPerThread = 16;
// Rows of a task: enough to make expansion cheap, few enough that its accumulators stay in the L2 cache.
constexpr int64_t kTileFloats = 96 * 128;
constexpr int32_t kMaxTileRows = 96;
// State of a task that takes several KV heads in turn, so that rows of different heads in one cache line are read once.
constexpr int64_t kStateBytes = 256 * 1024;
// Partial results of one run; what does not fit is computed by tasks that keep whole rows.
constexpr int64_t kMaxPartialBytes = int64_t{32} << 20;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Shape shape_of(const AttnDesc& desc, const AttnLimits& limits, int32_t lanes, int num_threads) {
  const KvLayout& layout = desc.layout;
  const int32_t max_dim = std::max(layout.head_dim_k, layout.head_dim_v);
  Shape shape{.lanes = lanes, .group = desc.num_q_heads / layout.num_kv_heads};
  // With few rows most lanes of a panel would idle. One method for all keeps rows equal whatever their chunk.
  shape.max_row_rows = desc.batch_invariant ? 0 : 3 * lanes / 4;
  const int64_t tile_rows = std::clamp<int64_t>(kTileFloats / max_dim, 1, kMaxTileRows);
  shape.tile_tokens =
      static_cast<int32_t>(std::clamp<int64_t>(tile_rows / shape.group, 1, std::max(limits.max_query_len, 1)));
  const int32_t width = shape.panel_width();
  shape.padded_rows =
      static_cast<int32_t>(divide_up(static_cast<int64_t>(shape.tile_tokens) * shape.group, width)) * width;
  const int64_t head_bytes = int64_t{4} * shape.padded_rows * (layout.head_dim_k + 2 * layout.head_dim_v);
  shape.max_heads = static_cast<int32_t>(std::clamp<int64_t>(kStateBytes / head_bytes, 1, layout.num_kv_heads));
  const int64_t max_keys = static_cast<int64_t>(limits.max_pages_per_request) * layout.page_size;
  shape.max_splits = static_cast<int32_t>(divide_up(max_keys, kKeySplit));
  if (num_threads > 1) {
    const int64_t wanted = static_cast<int64_t>(limits.max_tokens) * desc.num_q_heads * shape.max_splits;
    shape.max_partials = std::min<int64_t>(wanted, kMaxPartialBytes / (4 * (layout.head_dim_v + 2)));
  }
  return shape;
}

Schedule make_schedule(const AttnDesc& desc, const AttnArgs& args, const Shape& shape, int num_threads,
                       RequestCut* cuts) {
  const auto view = [&](int32_t r) { return RequestView{.desc = desc, .args = args, .request = r}; };
  const auto work_of = [&](int32_t r) {
    const KeyRange keys = view(r).keys_of(0, view(r).num_tokens());
    return keys.empty() ? int64_t{0} : int64_t{view(r).num_tokens()} * (keys.last - keys.first);
  };
  int64_t total_work = 1;
  for (int32_t r = 0; r < args.num_requests; ++r) total_work += work_of(r);

  Schedule schedule;
  int64_t num_partials = 0;
  int64_t work_before = 0;
  for (int32_t r = 0; r < args.num_requests; ++r) {
    RequestCut& cut = cuts[r] = {.first_task = schedule.num_tasks, .first_merge = schedule.num_merges};
    const int32_t num_tokens = view(r).num_tokens();
    if (num_tokens == 0) continue;
    const KeyRange keys = view(r).keys_of(0, num_tokens);
    if (!keys.empty()) {
      cut.first_split = keys.first / kKeySplit;
      cut.num_splits = static_cast<int32_t>(divide_up(keys.last, kKeySplit)) - cut.first_split;
    }
    cut.num_tiles = static_cast<int32_t>(divide_up(num_tokens, shape.tile_tokens));
    // Tasks that this request should give, by its share of the work.
    const int64_t work = work_of(r);
    const int64_t tasks = num_threads * (work_before < total_work / 4 * 3 ? kTasksPerThread : kLastTasksPerThread);
    const int64_t wanted = num_threads == 1 ? 1 : divide_up(work * tasks, total_work);
    work_before += work;
    const int64_t partials = int64_t{num_tokens} * desc.num_q_heads * cut.num_splits;
    cut.by_split =
        wanted > 1 && cut.num_tiles == 1 && cut.num_splits > 1 && num_partials + partials <= shape.max_partials;
    const int64_t units = cut.by_split ? cut.num_splits : cut.num_tiles;
    const int32_t num_kv_heads = desc.layout.num_kv_heads;
    cut.heads_per_task = cut.num_tiles > 1
                             ? 1
                             : static_cast<int32_t>(std::clamp<int64_t>(
                                   num_kv_heads / divide_up(std::max<int64_t>(wanted, 1), units), 1, shape.max_heads));
    cut.num_head_chunks = static_cast<int32_t>(divide_up(num_kv_heads, cut.heads_per_task));
    schedule.num_tasks += units * cut.num_head_chunks;
    if (cut.by_split) {
      cut.first_partial = num_partials;
      num_partials += partials;
      schedule.num_merges += num_tokens;
    }
  }
  return schedule;
}

}  // namespace kvant::attn::cpu
