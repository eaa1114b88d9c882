#pragma once

#include <cstdint>
#include <vector>

#include "kvant/attn/attention.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/core/device.h"
#include "kvant/core/status.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// Layers that share one page table and one attention plan: same encoding, window and head shape.
struct LayerGroup {
  attn::KvSpec spec;
  attn::AttnDesc desc;  ///< Layout included.
  std::vector<int32_t> layers;
};

/// The order of bytes in pages that a device's kernels read.
attn::KvLayout device_layout(attn::KvLayout layout, const DeviceInfo& device);

/// Cuts a model's layers into groups for a resolved spec on a device. In a model that mixes full and window layers an
/// NVFP4 spec keeps windows of at most 1 024 tokens in e4m3 with exact edges; a layer's own override wins over both.
Result<std::vector<LayerGroup>> make_layer_groups(const ModelConfig& config, const attn::KvSpec& spec,
                                                  int32_t page_size, const DeviceInfo& device);

}  // namespace kvant::engine
