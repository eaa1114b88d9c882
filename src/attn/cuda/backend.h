#pragma once

#include <cstddef>
#include <string>

#include "kvant/attn/attention.h"
#include "kvant/attn/kernel_table.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

// The CUDA side of kvant/attn/attention.h, on the calling thread's current device. Descriptors have been checked and a
// row of the kernel table takes them.

/// Words at the workspace's start that are zero between launches, whichever kernel a plan uses.
inline constexpr int32_t kNumCounters = 16384;

/// What make_plan needs: which instantiation runs, on how many blocks, in how much memory.
struct AttentionRoute {
  AttnLaunch launch;
  size_t workspace_bytes = 0;
  std::string name;  ///< Such as "e4m3_d128_r2".
};

/// Fails where the current device is not `device`, has no image of the row's kernel or too little shared memory for it.
Result<AttentionRoute> attention_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device,
                                       const KernelRow& row);

/// Of every attention kernel in the build that the current device, `device`, could be given.
Status check_kernel_images(const DeviceInfo& device);

/// Clears the part of the workspace that must be zero before the first run. Asynchronous.
Status prepare(const AttnPlan& plan, void* stream);

/// Checks what is in host memory, then launches one kernel.
Status attention(const AttnPlan& plan, const AttnArgs& args, void* stream);

/// One launch; the arguments have been checked.
Status merge_parts(const MergeArgs& args, void* stream);

}  // namespace kvant::attn::cuda
