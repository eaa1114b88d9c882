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

/// What calibration learned of one layer. mu, z and zi are [num_kv_heads, head_dim_k], scales are [num_kv_heads].
struct LayerProfile {
  std::vector<float> mu;
  std::vector<float> z;
  std::vector<float> zi;      ///< fl(1 / z)
  std::vector<float> g_k[3];  ///< NVFP4 global scales of K' under each KeyConditioning.
  std::vector<float> g_v;     ///< NVFP4 global scales of V.
};

/// Static parameters of conditioned keys and global scales of one model.
struct KvProfile {
  std::string id;          ///< Hash of everything below.
  std::string model_hash;  ///< ModelSource::hash of the model it was made from.
  int32_t tokens = 0;      ///< Real tokens that went in.
  int32_t context = 0;     ///< Longest chunk.
  std::vector<LayerProfile> layers;

  /// Refuses a profile whose shapes are not this model's.
  Status check_shapes(const ModelConfig& config) const;
};

/// The peers' encoding: no conditioning, no edges, the plain scale rule. Never takes anything from a profile.
bool spec_is_plain(const attn::KvSpec& spec);

/// True when a spec cannot run, or runs badly, without a profile: conditioned keys, and NVFP4 other than plain.
bool spec_wants_profile(const attn::KvSpec& spec);
/// True when a spec cannot run at all without a profile.
bool spec_needs_profile(const attn::KvSpec& spec);
/// The refusal of a spec that has none.
Status missing_profile(const attn::KvSpec& spec);

/// NVFP4 global scale of values whose largest magnitude in calibration was `amax`: amax / 2688 with a factor of 2 of
/// headroom, at least 2^-14.
float nvfp4_scale(float amax);
/// The scale that gives another format the same headroom; 1 for formats without a global scale.
float scale_for_format(attn::KvFormat format, float nvfp4_scale);

/// Hash of everything in a profile but its id.
std::string profile_id(const KvProfile& profile);

/// A safetensors file. Loading checks every number and the id, so that a damaged file is refused.
Status save_profile(const KvProfile& profile, const std::filesystem::path& path);
Result<KvProfile> load_profile(const std::filesystem::path& path);

}  // namespace kvant::engine
