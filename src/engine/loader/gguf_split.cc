// Models cut into several GGUF files: "x-00001-of-00003.gguf" with the metadata, and others with more tensors.
#include "engine/loader/gguf.h"

#include "engine/loader/printable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <system_error>
#include <utility>

namespace kvant::engine {
namespace {

constexpr std::string_view kPartKey = "split.no";
constexpr std::string_view kCountKey = "split.count";
constexpr int64_t kMostParts = 10000;

std::string part_suffix(int64_t part, int64_t count) { return fmt::format("-{:05}-of-{:05}.gguf", part + 1, count); }

/// Every part's path, from the first one's.
Result<std::vector<std::filesystem::path>> part_paths(const std::filesystem::path& first, int64_t part, int64_t count) {
  const std::string name = first.filename().string(), suffix = part_suffix(part, count);
  if (!name.ends_with(suffix)) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("'{}' is part {} of {} of a split model; its name must end in '{}'", first.string(),
                               part + 1, count, suffix));
  }
  const std::string stem = name.substr(0, name.size() - suffix.size());
  std::vector<std::filesystem::path> paths;
  std::vector<std::string> missing;
  for (int64_t i = 0; i < count; ++i) {
    paths.push_back(first.parent_path() / (stem + part_suffix(i, count)));
    std::error_code ignored;
    if (!std::filesystem::exists(paths.back(), ignored)) missing.push_back(fmt::format("'{}'", paths.back().string()));
  }
  if (part != 0) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("'{}' is part {} of {} of a split model; name the first, '{}'", first.string(), part + 1,
                               count, paths.front().string()));
  }
  if (!missing.empty()) {
    return failure(StatusCode::kNotFound, fmt::format("{} of {} parts of the model are missing: {}", missing.size(),
                                                      count, fmt::join(missing, ", ")));
  }
  return paths;
}

}  // namespace

Status GgufFile::add_parts(const std::filesystem::path& path) {
  if (!contains(kCountKey)) return {};
  KVANT_ASSIGN_OR_RETURN(const int64_t count, get_int(kCountKey));
  if (count == 0 || count == 1) return {};
  KVANT_ASSIGN_OR_RETURN(const int64_t first_part, get_int(kPartKey));
  if (count < 0 || count > kMostParts || first_part < 0 || first_part >= count) {
    return {StatusCode::kDataLoss, fmt::format("'{}' says that it is part {} of {}; at most {} parts are read", name_,
                                               first_part, count, kMostParts)};
  }
  KVANT_ASSIGN_OR_RETURN(const auto paths, part_paths(path, first_part, count));
  for (int64_t part = 1; part < count; ++part) {
    KVANT_ASSIGN_OR_RETURN(MmapFile mapping, MmapFile::open(paths[static_cast<size_t>(part)]));
    KVANT_ASSIGN_OR_RETURN(GgufFile other, parse(mapping.bytes(), paths[static_cast<size_t>(part)].string()));
    KVANT_ASSIGN_OR_RETURN(const int64_t found, other.get_int(kPartKey));
    if (found != part) {
      return {StatusCode::kDataLoss,
              fmt::format("'{}' says that it is part {} of the model, not {}", other.name_, found + 1, part + 1)};
    }
    for (GgufTensor& tensor : other.tensors_) {
      if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
        return {StatusCode::kDataLoss, fmt::format("the tensor '{}' of '{}' is also in an earlier part of the model",
                                                   printable(tensor.name), other.name_)};
      }
      tensors_.push_back(std::move(tensor));
    }
    mappings_.push_back(std::move(mapping));
  }
  constexpr std::string_view kTensorsKey = "split.tensors.count";
  if (!contains(kTensorsKey)) return {};
  KVANT_ASSIGN_OR_RETURN(const int64_t promised, get_int(kTensorsKey));
  if (promised == static_cast<int64_t>(tensors_.size())) return {};
  return {StatusCode::kDataLoss, fmt::format("the {} parts of '{}' hold {} tensors; {} says {}", count, name_,
                                             tensors_.size(), kTensorsKey, promised)};
}

}  // namespace kvant::engine
