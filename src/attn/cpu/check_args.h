#pragma once

#include "kvant/attn/attention.h"
#include "kvant/core/status.h"

namespace kvant::attn::cpu {

/// Everything about one step that would otherwise read or write out of bounds.
Status check_args(const AttnDesc& desc, const AttnLimits& limits, const AttnArgs& args);

}  // namespace kvant::attn::cpu
