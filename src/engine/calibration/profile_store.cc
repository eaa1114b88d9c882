#include "engine/calibration/profile_store.h"

#include <cstdlib>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace kvant::engine {

std::filesystem::path default_cache_dir() {
  const auto variable = [](const char* name) -> std::filesystem::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (auto path = variable("KVANT_CACHE_DIR"); !path.empty()) return path;
  if (const auto path = variable("XDG_CACHE_HOME"); !path.empty()) return path / "kvant";
  if (const auto path = variable("HOME"); !path.empty()) return path / ".cache" / "kvant";
  return {};
}

ProfileStore::ProfileStore(std::filesystem::path cache_dir, NoticeFn notice)
    : cache_dir_(cache_dir.empty() ? default_cache_dir() : std::move(cache_dir)), notice_(std::move(notice)) {}

std::filesystem::path ProfileStore::path_of(const std::string& model_hash) const {
  return cache_dir_ / "profiles" / (model_hash + ".safetensors");
}

void ProfileStore::notify(std::string_view text) const {
  if (notice_) notice_(text);
}

Result<KvProfile> ProfileStore::find(const std::string& model_hash, const ModelConfig& config) const {
  if (cache_dir_.empty()) return failure(StatusCode::kNotFound, "no cache directory");
  std::error_code unreadable;
  if (!std::filesystem::exists(path_of(model_hash), unreadable))
    return failure(StatusCode::kNotFound, "no profile of this model is stored");
  auto profile = load_profile(path_of(model_hash));
  Status status = profile ? profile->check_shapes(config) : profile.error();
  if (status.ok() && profile->model_hash == model_hash) return profile;
  if (status.ok()) status = {StatusCode::kDataLoss, "it was made from another model"};
  notify(fmt::format("the stored KV profile cannot be used and is made again: {}", status.message()));
  return failure(StatusCode::kNotFound, status.message());
}

void ProfileStore::keep(const KvProfile& profile) const {
  if (cache_dir_.empty()) return notify("no cache directory is known (HOME is not set): the KV profile is not stored");
  const std::filesystem::path path = path_of(profile.model_hash);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const Status status =
      error ? Status(StatusCode::kInvalidArgument,
                     fmt::format("cannot create '{}': {}", path.parent_path().string(), error.message()))
            : save_profile(profile, path);
  if (!status.ok())
    notify(fmt::format("the KV profile is not stored, the next start will make it again: {}", status.message()));
}

}  // namespace kvant::engine
