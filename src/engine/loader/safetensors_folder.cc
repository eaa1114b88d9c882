#include "engine/loader/safetensors_folder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/hash.h"
#include "engine/loader/json_object.h"
#include "engine/loader/printable.h"

namespace kvant::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kExtension = ".safetensors";
constexpr size_t kLargestIndex = size_t{64} << 20;
constexpr size_t kMostShards = 10000;

bool file_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_plain_shard_name(std::string_view name) {
  return name.size() > kExtension.size() && name.ends_with(kExtension) && name.size() < 256 &&
         name.find_first_of(std::string_view("/\\:\0", 4)) == std::string_view::npos;
}

/// "model-00002-of-00003.safetensors": 2 and 3.
std::optional<std::pair<int, int>> shard_numbers(std::string_view name) {
  constexpr std::string_view kPrefix = "model-", kOf = "-of-";
  if (!name.starts_with(kPrefix) || !name.ends_with(kExtension)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kExtension.size());
  const size_t middle = name.find(kOf);
  if (middle == std::string_view::npos) return std::nullopt;
  const auto number = [](std::string_view text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && text.size() == 5 ? value : -1;
  };
  const int index = number(name.substr(0, middle));
  const int count = number(name.substr(middle + kOf.size()));
  if (index < 1 || count < index) return std::nullopt;
  return std::pair(index, count);
}

Status missing_shards(const std::vector<fs::path>& shards) {
  std::vector<std::string> missing;
  for (const fs::path& shard : shards)
    if (!file_exists(shard)) missing.push_back(fmt::format("'{}'", shard.string()));
  if (missing.empty()) return {};
  return {StatusCode::kNotFound,
          fmt::format("{} of {} shards are missing: {}", missing.size(), shards.size(), fmt::join(missing, ", "))};
}

struct Index {
  std::map<std::string, std::string, std::less<>> shard_of;  ///< By tensor.
  std::vector<fs::path> shards;
};

Result<Index> read_index(const fs::path& folder) {
  const fs::path path = folder / kIndexFile;
  KVANT_ASSIGN_OR_FAIL(const JsonObject json, JsonObject::read(path, kLargestIndex));
  KVANT_ASSIGN_OR_FAIL(const JsonObject weights, json.object("weight_map"));
  Index index;
  std::set<std::string> names;
  for (const auto& [tensor, file] : weights.json().items()) {
    if (!file.is_string())
      return failure(StatusCode::kDataLoss,
                     fmt::format("{}: the file of tensor '{}' is not a string", weights.name(), printable(tensor)));
    const std::string& shard = file.get_ref<const std::string&>();
    if (!is_plain_shard_name(shard)) {
      return failure(StatusCode::kDataLoss,
                     fmt::format("{}: tensor '{}' is said to be in '{}'; a .safetensors file of the same folder is "
                                 "needed",
                                 weights.name(), printable(tensor), printable(shard)));
    }
    index.shard_of.emplace(tensor, shard);
    names.insert(shard);
  }
  if (names.empty()) return failure(StatusCode::kDataLoss, fmt::format("{}: it names no tensor", weights.name()));
  if (names.size() > kMostShards)
    return failure(StatusCode::kDataLoss, fmt::format("{}: it names {} shards; at most {} are read", weights.name(),
                                                      names.size(), kMostShards));
  for (const std::string& name : names) index.shards.push_back(folder / name);
  return index;
}

/// Shards of a folder that has neither a single file nor an index.
Result<std::vector<fs::path>> numbered_shards(const fs::path& folder) {
  int count = 0;
  bool other_format = false;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto numbers = shard_numbers(name)) count = std::max(count, numbers->second);
    other_format |= name.starts_with("pytorch_model") || name.ends_with(".bin") || name.ends_with(".pth");
  }
  if (count == 0) {
    return failure(StatusCode::kNotFound,
                   fmt::format("'{}' has neither {} nor {}{}", folder.string(), kSingleFile, kIndexFile,
                               other_format ? "; PyTorch weights are not read, convert them to safetensors" : ""));
  }
  std::vector<fs::path> shards;
  for (int i = 1; i <= std::min<int>(count, kMostShards); ++i)
    shards.push_back(folder / fmt::format("model-{:05}-of-{:05}{}", i, count, kExtension));
  return shards;
}

}  // namespace

Status SafetensorsFolder::add_file(const fs::path& path) {
  KVANT_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(path));
  const auto& file = files_.emplace_back(std::make_unique<const SafetensorsFile>(std::move(opened)));
  for (const SafetensorsTensor& tensor : file->tensors()) {
    if (tensors_.emplace(tensor.name, &tensor).second) continue;
    const auto holder = std::find_if(files_.begin(), files_.end(),
                                     [&](const auto& other) { return other->find_tensor(tensor.name) != nullptr; });
    return {StatusCode::kDataLoss, fmt::format("tensor '{}' is in two shards, '{}' and '{}'", printable(tensor.name),
                                               (*holder)->name(), file->name())};
  }
  return {};
}

Result<SafetensorsFolder> SafetensorsFolder::open(const fs::path& folder) {
  SafetensorsFolder out;
  out.name_ = folder.string();
  if (file_exists(folder / kSingleFile)) {
    KVANT_FAIL_IF_ERROR(out.add_file(folder / kSingleFile));
    return out;
  }
  Index index;
  if (file_exists(folder / kIndexFile)) {
    KVANT_ASSIGN_OR_FAIL(index, read_index(folder));
  } else {
    KVANT_ASSIGN_OR_FAIL(index.shards, numbered_shards(folder));
  }
  KVANT_FAIL_IF_ERROR(missing_shards(index.shards));
  for (const fs::path& shard : index.shards) KVANT_FAIL_IF_ERROR(out.add_file(shard));
  for (const auto& [tensor, shard] : index.shard_of) {
    const auto file = std::find_if(out.files_.begin(), out.files_.end(), [&, &name = shard](const auto& other) {
      return fs::path(other->name()).filename() == name;
    });
    if ((*file)->find_tensor(tensor) == nullptr)
      return failure(StatusCode::kDataLoss, fmt::format("'{}' lacks tensor '{}', which {} says it holds",
                                                        (*file)->name(), printable(tensor), kIndexFile));
  }
  return out;
}

const SafetensorsTensor* SafetensorsFolder::find_tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

int64_t SafetensorsFolder::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += static_cast<int64_t>(tensor->data.size());
  return total;
}

std::string SafetensorsFolder::hash() const {
  Hasher hasher;
  for (const auto& [name, tensor] : tensors_) {
    hasher.add(name);
    hasher.add_value(tensor->type);
    hasher.add_value(tensor->data.size());
    hasher.add_samples(tensor->data);
  }
  return hasher.hex();
}

}  // namespace kvant::engine
