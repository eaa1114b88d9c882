#pragma once

#include <cstddef>
#include <string_view>

#include "kvant/attn/attention.h"
#include "kvant/core/status.h"
#include "kvant/core/thread_pool.h"

namespace kvant::attn::cpu {

/// Name of the instruction set that runs, in lower case, such as "avx2".
std::string_view isa_name();

/// Bytes of scratch memory that `attention` needs. `desc` and `limits` have been validated.
size_t attention_workspace(const AttnDesc& desc, const AttnLimits& limits, int num_threads);

/// Checks the data of one step against the limits, then computes it. On an error nothing has been written.
Status attention(const AttnDesc& desc, const AttnLimits& limits, Workspace workspace, const AttnArgs& args,
                 ThreadPool& pool);

/// `merge` on the CPU.
Status merge_parts(const MergeArgs& args, ThreadPool& pool);

}  // namespace kvant::attn::cpu
