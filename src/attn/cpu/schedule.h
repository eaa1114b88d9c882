#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/cpu/key_range.h"
#include "kvant/attn/attention.h"

namespace kvant::attn::cpu {

/// Sizes that follow from the configuration and the vector width; they fix how memory is cut.
struct Shape {
  int32_t lanes = 0;
  int32_t group = 0;         ///< Query heads per KV head.
  int32_t max_row_rows = 0;  ///< Up to this many query rows per KV head run with lanes over head_dim.
  int32_t tile_tokens = 0;   ///< Query tokens of one task.
  int32_t padded_rows = 0;   ///< Rows of a task's buffers for one KV head, whole panels.
  int32_t max_heads = 0;     ///< KV heads of one task.
  int32_t max_splits = 0;    ///< Of one request.
  int64_t max_partials = 0;  ///< (row, query head, split) results that may wait for the merge.

  int32_t panel_width() const { return 2 * lanes; }
};
Shape shape_of(const AttnDesc& desc, const AttnLimits& limits, int32_t lanes, int num_threads);

/// How one request is cut into tasks. A cut decides only who computes what: every row is the merge, in order, of its
/// key splits, whichever task computes them.
struct RequestCut {
  int64_t first_task = 0;
  int64_t first_merge = 0;
  int64_t first_partial = 0;
  int32_t first_split = 0, num_splits = 0;
  int32_t num_tiles = 0;  ///< Of query tokens.
  int32_t heads_per_task = 0;
  int32_t num_head_chunks = 0;
  bool by_split = false;  ///< One task per split; results meet in the workspace.
};

struct Schedule {
  int64_t num_tasks = 0;
  int64_t num_merges = 0;  ///< Query tokens of requests cut by split.
};

/// Fills cuts[num_requests].
Schedule make_schedule(const AttnDesc& desc, const AttnArgs& args, const Shape& shape, int num_threads,
                       RequestCut* cuts);

}  // namespace kvant::attn::cpu
