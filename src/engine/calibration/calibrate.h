#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/profile.h"
#include "engine/runner/runner.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// A short text of several kinds (prose, dialogue, source code, tables): what a model is calibrated on by default.
std::string_view neutral_text();

inline constexpr int32_t kCalibrationContext = 512;
inline constexpr int32_t kCalibrationTokens = 1024;

/// Runs `tokens` through the model in chunks of `context` with a 16-bit cache and makes a profile of what is seen.
/// `model_hash` is ModelSource::hash. `score_noise` receives, per layer, how far NVFP4 keys under that profile move
/// attention scores (conditioned_keys.h).
Result<KvProfile> calibrate(Runner& runner, std::span<const int32_t> tokens, int32_t context,
                            std::string_view model_hash, const ProgressFn& progress,
                            std::vector<float>* score_noise = nullptr);

/// One line that names layers whose keys conditioning does not tame, with the option that keeps them exact; "" when
/// there are none.
std::string describe_rough_layers(std::span<const float> score_noise);

}  // namespace kvant::engine
