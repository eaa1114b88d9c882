#pragma once

#include "kvant/attn/attention.h"
#include "kvant/core/status.h"

namespace kvant::attn {

/// Checks what of one step is in host memory on every device: counts, which pointers are there, layout and scales.
Status check_host_args(const AttnDesc& desc, const AttnLimits& limits, const AttnArgs& args);

}  // namespace kvant::attn
