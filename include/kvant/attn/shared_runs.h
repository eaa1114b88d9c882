#pragma once

#include <cstdint>
#include <span>

#include "kvant/attn/attention.h"
#include "kvant/core/status.h"

namespace kvant::attn {

/// A batch in host memory, as its kernels will see it.
struct SharedRunBatch {
  std::span<const int32_t> q_offsets;   ///< [num_requests + 1]
  std::span<const int32_t> kv_lens;     ///< [num_requests]; global lengths under context parallelism
  std::span<const int32_t> page_table;  ///< [num_requests, page_table_stride]
  int64_t page_table_stride = 0;
  int32_t page_size = 16;
  ContextParallel context_parallel;
};

/// A run below these costs more than it saves: measured, with eight KV heads, against kernels that find the shared
/// pages in the L2 cache.
struct SharedRunRules {
  int32_t min_requests = 16;
  int64_t min_saved_keys = kMinSavedKeys;  ///< Shared keys by requests, less one.
};

/// Finds runs that save most reading, as AttnArgs::shared_runs wants them: runs [num_requests + 1], of which the first
/// counts the requests that share in num_requests. What a run's requests have in common are keys that every row of
/// theirs sees, whole tiles of 16, and each keeps keys of its own. Table entries past a request's length are not looked
/// at. Layers with a window or with other tables need other runs. kInvalidArgument where sizes do not fit.
Status find_shared_runs(const SharedRunBatch& batch, const SharedRunRules& rules, std::span<SharedRun> runs);

}  // namespace kvant::attn
