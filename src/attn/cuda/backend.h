#pragma once

#include <cstddef>
#include <string>

#include "kvant/attn/attention.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

// The CUDA side of kvant/attn/attention.h, on the calling thread's current device. Descriptors have been checked and a
// row of the kernel table takes them.

/// What make_plan needs: which instantiation runs, on how many blocks, in how much memory.
struct AttentionRoute {
  AttnLaunch launch;
  size_t workspace_bytes = 0;
  std::string name;  ///< Such as "e4m3_d128_r2".
};

/// Fails where the current device is not `device`, has no image of the kernel or too little shared memory for it.
Result<AttentionRoute> attention_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device);

/// Clears the part of the workspace that must be zero before the first run. Asynchronous.
Status prepare(const AttnPlan& plan, void* stream);

/// Checks what is in host memory, then launches one kernel.
Status attention(const AttnPlan& plan, const AttnArgs& args, void* stream);

}  // namespace kvant::attn::cuda
