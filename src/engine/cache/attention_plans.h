#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/device_memory.h"
#include "engine/cache/layer_groups.h"
#include "kvant/attn/attention.h"
#include "kvant/core/device.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant::engine {

/// The attention plans of all layer groups, with the workspace that they share. On CUDA steps of few query rows per
/// request, decodes and verified drafts, have plans of their own: a kernel made for many rows does more for each key.
class AttentionPlans {
 public:
  static Result<AttentionPlans> create(std::span<const LayerGroup> groups, const attn::AttnLimits& limits,
                                       const DeviceInfo& device, Stream stream);

  /// For a step whose longest row has this many tokens.
  const attn::AttnPlan& plan(size_t group, int32_t max_query_len) const;
  /// Which of its plans `plan` gives.
  int32_t plan_index(size_t group, int32_t max_query_len) const;
  /// Routes of all groups, joined by ", ".
  std::string routes() const;

 private:
  std::vector<std::vector<attn::AttnPlan>> plans_;  ///< By group, the longest rows last.
  DeviceBuffer workspace_;
};

}  // namespace kvant::engine
