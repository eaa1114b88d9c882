#include "engine/models/rope_params.h"

#include <vector>

namespace kvant::engine {
namespace {

RopePairs pairs(RopeStyle style) {
  switch (style) {
    case RopeStyle::kHalves: return RopePairs::kHalves;
    case RopeStyle::kInterleaved: return RopePairs::kInterleaved;
  }
  return RopePairs::kHalves;
}

std::vector<float> scaling_factors(const RopeConfig& rope) {
  const RopeScaling& scaling = rope.scaling;
  switch (scaling.kind) {
    case RopeScalingKind::kNone:
    case RopeScalingKind::kDynamic: return {};
    case RopeScalingKind::kLinear: return std::vector<float>(static_cast<size_t>(rope.dim / 2), scaling.factor);
    case RopeScalingKind::kLlama3:
      return ops::llama3_frequency_factors(rope.dim, static_cast<double>(rope.theta),
                                           {.factor = scaling.factor,
                                            .low_frequency_factor = scaling.low_frequency_factor,
                                            .high_frequency_factor = scaling.high_frequency_factor,
                                            .original_context = static_cast<double>(scaling.original_context)});
    case RopeScalingKind::kYarn:
      return ops::yarn_frequency_factors(rope.dim, static_cast<double>(rope.theta),
                                         {.factor = scaling.factor,
                                          .original_context = static_cast<double>(scaling.original_context),
                                          .fast_turns = scaling.fast_turns,
                                          .slow_turns = scaling.slow_turns,
                                          .whole_pairs = scaling.whole_pairs});
  }
  return {};
}

}  // namespace

ops::RopeParams rope_params(const RopeConfig& rope) {
  return {
      .dim = rope.dim,
      .theta = static_cast<double>(rope.theta),
      .pairs = pairs(rope.style),
      .frequency_factors = rope.frequency_factors.empty() ? scaling_factors(rope) : rope.frequency_factors,
      .scale = rope.scaling.kind == RopeScalingKind::kYarn ? static_cast<double>(rope.scaling.attention_factor) : 1.0};
}

}  // namespace kvant::engine
