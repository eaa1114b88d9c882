#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kvant/core/status.h"

namespace kvant::engine {

/// Text of a file that is small by its nature, or one line why not.
Result<std::string> read_small_file(const std::filesystem::path& path, size_t largest);

/// Parses untrusted JSON: at most 256 levels, valid UTF-8, one value. Errors are one line that begins with `name`.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view name);

/// A view of one JSON object of a checkpoint, with typed look-ups whose errors name file, key, what was found and what
/// is needed. A key with the value null counts as absent. Cheap to copy.
class JsonObject {
 public:
  /// Limits for `read`: no config file of a published model comes near them.
  static constexpr size_t kLargestConfig = size_t{16} << 20;

  /// Reads a file that holds one object.
  static Result<JsonObject> read(const std::filesystem::path& path, size_t largest = kLargestConfig);
  static Result<JsonObject> parse(std::string_view text, std::string name);

  /// File, and the path of keys to this object: "dir/config.json: rope_scaling".
  const std::string& name() const { return name_; }
  const nlohmann::json& json() const { return *json_; }

  bool contains(std::string_view key) const;
  std::vector<std::string> keys() const;

  Result<int64_t> integer(std::string_view key, int64_t least, int64_t most) const;
  /// A positive count that a model can have: 1 to 2^24.
  Result<int32_t> size(std::string_view key) const;
  Result<int32_t> size_or(std::string_view key, int32_t fallback) const;
  /// A finite number.
  Result<double> number(std::string_view key) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  /// A number above 0 that a float holds.
  Result<float> positive(std::string_view key) const;
  Result<float> positive_or(std::string_view key, float fallback) const;
  Result<bool> boolean(std::string_view key) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text(std::string_view key) const;
  Result<std::string> text_or(std::string_view key, std::string_view fallback) const;
  Result<JsonObject> object(std::string_view key) const;
  /// Absent: nothing. Another type: an error.
  Result<std::optional<JsonObject>> find_object(std::string_view key) const;
  Result<std::vector<JsonObject>> objects(std::string_view key) const;
  Result<std::vector<std::string>> texts(std::string_view key) const;
  Result<std::vector<double>> numbers(std::string_view key) const;
  /// One integer or a list of them, as token ids are given; empty when absent.
  Result<std::vector<int64_t>> ids(std::string_view key) const;

  Status wrong(std::string_view key, std::string_view needed) const;

 private:
  JsonObject(std::shared_ptr<const nlohmann::json> json, std::string name);
  const nlohmann::json* find(std::string_view key) const;
  Result<const nlohmann::json*> require(std::string_view key) const;

  std::shared_ptr<const nlohmann::json> json_;  ///< May point into a document that it keeps alive.
  std::string name_;
};

}  // namespace kvant::engine
