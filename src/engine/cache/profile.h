#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kvant/attn/kv_spec.h"
#include "kvant/core/status.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// What calibration learned of one layer. Arrays are [num_kv_heads, head_dim_k]; amax arrays are [num_kv_heads].
struct LayerProfile {
  std::vector<float> mu;
  std::vector<float> z;
  std::vector<float> zi;         ///< fl(1 / z)
  std::vector<float> k_amax[3];  ///< Largest |K'| under each KeyConditioning.
  std::vector<float> v_amax;
};

/// Static parameters of conditioned keys and global scales of one model.
struct KvProfile {
  std::string id;          ///< Hash of everything below.
  std::string model_hash;  ///< ModelSource::hash of the model it was made from.
  int32_t tokens = 0;      ///< Real tokens that went in.
  int32_t context = 0;     ///< Longest chunk.
  std::vector<LayerProfile> layers;

  /// Refuses a profile whose shapes are not this model's.
  Status check_model(const ModelConfig& config, std::string_view hash) const;
};

/// True when a spec cannot run, or runs badly, without a profile: conditioned keys, and NVFP4 other than plain.
bool spec_wants_profile(const attn::KvSpec& spec);
/// True when a spec cannot run at all without a profile.
bool spec_needs_profile(const attn::KvSpec& spec);

/// Global scale of values whose largest magnitude in calibration was `amax`, with a factor of 2 of headroom, at least
/// 2^-14.
float global_scale(attn::KvFormat format, float amax);

/// Safetensors, see docs/kv_formats/profile.md.
Status save_profile(const KvProfile& profile, const std::filesystem::path& path);
Result<KvProfile> load_profile(const std::filesystem::path& path);

}  // namespace kvant::engine
