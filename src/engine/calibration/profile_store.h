#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "engine/cache/profile.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

/// $KVANT_CACHE_DIR, else $XDG_CACHE_HOME/kvant, else ~/.cache/kvant; empty when none of them is set.
std::filesystem::path default_cache_dir();

/// Profiles that kvant made by itself, by model hash, in the cache directory.
class ProfileStore {
 public:
  ProfileStore(std::filesystem::path cache_dir, NoticeFn notice);

  /// kNotFound when there is none. A damaged one is announced and treated as missing.
  Result<KvProfile> find(const std::string& model_hash, const ModelConfig& config) const;
  /// A directory that cannot be written is announced; the run goes on without it.
  void keep(const KvProfile& profile) const;

 private:
  std::filesystem::path path_of(const std::string& model_hash) const;
  void notify(std::string_view text) const;

  std::filesystem::path cache_dir_;
  NoticeFn notice_;
};

}  // namespace kvant::engine
