#pragma once

#include "attn/cuda/backend.h"

namespace kvant::attn::cuda {

/// The prefill kernel's side of attention_route and attention; everything that the kernel table checks has been.
Result<AttentionRoute> prefill_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device);
Status check_prefill_images(const DeviceInfo& device);
Status launch_prefill(const AttnPlan& plan, const AttnArgs& args, void* stream);

}  // namespace kvant::attn::cuda
