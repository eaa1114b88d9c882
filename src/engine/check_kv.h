#pragma once

#include <cstdint>

#include "kvant/attn/kv_spec.h"
#include "kvant/core/device.h"
#include "kvant/core/status.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

struct KvCheckOptions {
  int32_t page_size = 16;
  int32_t max_requests = 1;
  int32_t max_batch_tokens = 512;
  bool has_profile = true;  ///< False: none may be made or was given.
};

/// Whether a model can run with a resolved spec on a device: asks the attention library about every layer, then about
/// every group of layers as planning will once the weights are there.
Status check_kv_spec(const attn::KvSpec& resolved, const ModelConfig& config, const DeviceInfo& device,
                     const KvCheckOptions& options);

}  // namespace kvant::engine
