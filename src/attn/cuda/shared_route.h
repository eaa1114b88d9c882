#pragma once

#include <cstdint>

#include "attn/cuda/backend.h"
#include "kvant/attn/attention.h"

namespace kvant::attn::cuda {

/// Adds to a decode route what runs that are given shared_runs launch, where limits ask for it and a kernel takes the
/// layer: SM90, head dim 128, up to eight query rows, no window, requests by KV heads within the counters, and keys
/// enough that sharing them can pay.
Status add_shared_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device, int32_t row_tiles,
                        AttentionRoute& route);

/// Whether a run of a decode plan takes that launch: never where plain kernels merge within clusters.
bool shares_pages(const AttnPlan& plan, const AttnArgs& args);
Status launch_shared(const AttnPlan& plan, const AttnArgs& args, void* stream);

Status check_shared_images(const DeviceInfo& device);

}  // namespace kvant::attn::cuda
