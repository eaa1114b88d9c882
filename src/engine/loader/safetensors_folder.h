#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loader/safetensors.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// The weights of a Hugging Face folder as one set: `model.safetensors`, or the shards that
/// `model.safetensors.index.json` names, or complete shards `model-0000i-of-0000N.safetensors` without an index.
/// Opening reads headers only; data stays mapped.
class SafetensorsFolder {
 public:
  /// Names every missing shard by its full path, a tensor that two shards hold, one that the index promises and its
  /// shard lacks, and an index that points out of the folder.
  static Result<SafetensorsFolder> open(const std::filesystem::path& folder);

  const std::string& name() const { return name_; }
  size_t num_files() const { return files_.size(); }
  /// By name.
  const std::map<std::string_view, const SafetensorsTensor*, std::less<>>& tensors() const { return tensors_; }
  /// Null when there is none of that name.
  const SafetensorsTensor* find_tensor(std::string_view name) const;
  int64_t total_bytes() const;

  /// Hash of names, types, sizes and samples of every tensor: fast, and different for different models.
  std::string hash() const;

 private:
  Status add_file(const std::filesystem::path& path);

  std::string name_;
  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::map<std::string_view, const SafetensorsTensor*, std::less<>> tensors_;
};

}  // namespace kvant::engine
