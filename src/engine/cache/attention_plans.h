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

/// The attention plans of all layer groups, with the workspace that they share. On CUDA a step of few query rows per
/// request has a plan of its own: a kernel made for many rows reads the same keys with more work for each.
class AttentionPlans {
 public:
  static Result<AttentionPlans> create(std::span<const LayerGroup> groups, const attn::AttnLimits& limits,
                                       const DeviceInfo& device, Stream stream);

  /// For a step whose longest row has this many tokens.
  const attn::AttnPlan& plan(size_t group, int32_t max_query_len) const;
  /// Which of its plans `plan` gives.
  bool is_narrow(size_t group, int32_t max_query_len) const;
  /// Routes of all groups, joined by ", ".
  std::string routes() const;

 private:
  struct GroupPlans {
    attn::AttnPlan wide;    ///< Any step.
    attn::AttnPlan narrow;  ///< Steps of at most narrow_query_len rows a request; that is 0 where there is none.
    int32_t narrow_query_len = 0;
  };
  std::vector<GroupPlans> plans_;
  DeviceBuffer workspace_;
};

}  // namespace kvant::engine
