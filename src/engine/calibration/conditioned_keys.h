#pragma once

#include <span>
#include <vector>

#include "engine/cache/profile.h"
#include "kvant/attn/kv_cache.h"
#include "kvant/attn/kv_format.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// Keys [tokens, kv_heads, head_dim_k] as a cache of a format holds them: conditioned, and rounded by the cache's own
/// writer, NVFP4 by the four-over-six rule. `scales` are the format's global scales, one per head, or empty.
Result<std::vector<float>> conditioned_keys(const LayerConfig& config, const attn::KeyConditioner& conditioner,
                                            attn::KvFormat format, std::span<const float> scales,
                                            std::span<const float> keys, Stream stream);

/// Standard deviation of the error that NVFP4 keys under full conditioning make in a layer's attention scores, in nats:
/// what the exact edges do not cover. `query_mean_squares` [kv_heads, head_dim_k] is of the queries of each group.
Result<float> score_noise(const LayerConfig& config, const LayerProfile& profile, std::span<const float> keys,
                          std::span<const double> query_mean_squares, Stream stream);

}  // namespace kvant::engine
