#pragma once

#include <cstdint>

#include "kvant/engine/model_config.h"
#include "ops/activation.h"
#include "ops/experts.h"

namespace kvant::engine {

/// A layer's activation as the operators take it.
inline ops::Gate gate_of(const LayerConfig& layer) {
  switch (layer.activation) {
    case Activation::kSilu: return {.kind = ops::GateKind::kSilu};
    case Activation::kGeluTanh: return {.kind = ops::GateKind::kGeluTanh};
    case Activation::kClampedSwish: return {.kind = ops::GateKind::kClampedSwish, .limit = layer.activation_limit};
  }
  return {};
}

inline ops::ExpertsShape experts_shape(const LayerConfig& layer, int64_t hidden) {
  return {.routing = {.num_experts = layer.experts.count,
                      .num_used = layer.experts.used,
                      .normalise = layer.experts.normalised},
          .hidden = hidden,
          .size = layer.ffn_size,
          .gate = gate_of(layer)};
}

}  // namespace kvant::engine
