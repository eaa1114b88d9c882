#include "engine/loader/json_object.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/mmap_file.h"
#include "engine/loader/printable.h"

namespace kvant::engine {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 256;
constexpr int64_t kMaxSize = int64_t{1} << 24;

/// Levels of brackets outside strings. Counted before parsing, so that depth costs nothing.
bool deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

/// A value as it may stand in a one-line message.
std::string shown(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return fmt::format("a list of {}", value.size());
    case Json::value_t::string: return fmt::format("'{}'", printable(value.get_ref<const std::string&>()));
    default: return value.dump();
  }
}

}  // namespace

Result<std::string> read_small_file(const std::filesystem::path& path, size_t largest) {
  KVANT_ASSIGN_OR_FAIL(const MmapFile file, MmapFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > largest) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("'{}' has {} bytes; at most {} are read", path.string(), bytes.size(), largest));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<Json> parse_json(std::string_view text, std::string_view name) {
  if (deeper_than(text, kDeepest)) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("'{}' nests JSON deeper than {} levels, which kvant does not read", name, kDeepest));
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("'{}' is not valid JSON in UTF-8 (at byte {} of {})", name, error.byte, text.size()));
  } catch (const Json::exception&) {
    return failure(StatusCode::kDataLoss, fmt::format("'{}' holds a JSON number that is out of range", name));
  }
}

JsonObject::JsonObject(std::shared_ptr<const Json> json, std::string name)
    : json_(std::move(json)), name_(std::move(name)) {}

Result<JsonObject> JsonObject::read(const std::filesystem::path& path, size_t largest) {
  KVANT_ASSIGN_OR_FAIL(const std::string text, read_small_file(path, largest));
  return parse(text, path.string());
}

Result<JsonObject> JsonObject::parse(std::string_view text, std::string name) {
  KVANT_ASSIGN_OR_FAIL(Json value, parse_json(text, name));
  if (!value.is_object()) {
    return failure(StatusCode::kDataLoss, fmt::format("'{}' holds {}; an object is needed", name, shown(value)));
  }
  return JsonObject(std::make_shared<const Json>(std::move(value)), std::move(name));
}

const Json* JsonObject::find(std::string_view key) const {
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

Result<const Json*> JsonObject::require(std::string_view key) const {
  if (const Json* value = find(key)) return value;
  return failure(StatusCode::kDataLoss, fmt::format("{}: '{}' is missing", name_, key));
}

Status JsonObject::wrong(std::string_view key, std::string_view needed) const {
  const Json* value = find(key);
  return {StatusCode::kDataLoss, fmt::format("{}: '{}' is {}; {} is needed", name_, key,
                                             value == nullptr ? "missing" : shown(*value), needed)};
}

bool JsonObject::contains(std::string_view key) const { return find(key) != nullptr; }

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : json_->items())
    if (!value.is_null()) out.push_back(key);
  return out;
}

Result<int64_t> JsonObject::integer(std::string_view key, int64_t least, int64_t most) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  const bool fits = value->is_number_unsigned()
                        ? value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                        : value->is_number_integer();
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most)
    return failure(wrong(key, fmt::format("a whole number from {} to {}", least, most)));
  return value->get<int64_t>();
}

Result<int32_t> JsonObject::size(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const int64_t value, integer(key, 1, kMaxSize));
  return static_cast<int32_t>(value);
}

Result<int32_t> JsonObject::size_or(std::string_view key, int32_t fallback) const {
  if (!contains(key)) return fallback;
  return size(key);
}

Result<double> JsonObject::number(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  if (!value->is_number() || !std::isfinite(value->get<double>())) return failure(wrong(key, "a number"));
  return value->get<double>();
}

Result<double> JsonObject::number_or(std::string_view key, double fallback) const {
  if (!contains(key)) return fallback;
  return number(key);
}

Result<float> JsonObject::positive(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  const double found = value->is_number() ? value->get<double>() : 0.0;
  const float narrow =
      std::abs(found) < static_cast<double>(std::numeric_limits<float>::max()) ? static_cast<float>(found) : 0.0f;
  if (!(narrow > 0.0f)) return failure(wrong(key, "a positive number"));
  return narrow;
}

Result<float> JsonObject::positive_or(std::string_view key, float fallback) const {
  if (!contains(key)) return fallback;
  return positive(key);
}

Result<bool> JsonObject::boolean(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  if (!value->is_boolean()) return failure(wrong(key, "true or false"));
  return value->get<bool>();
}

Result<bool> JsonObject::boolean_or(std::string_view key, bool fallback) const {
  if (!contains(key)) return fallback;
  return boolean(key);
}

Result<std::string> JsonObject::text(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  if (!value->is_string()) return failure(wrong(key, "a string"));
  return value->get<std::string>();
}

Result<std::string> JsonObject::text_or(std::string_view key, std::string_view fallback) const {
  if (!contains(key)) return std::string(fallback);
  return text(key);
}

Result<JsonObject> JsonObject::object(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  if (!value->is_object()) return failure(wrong(key, "an object"));
  return JsonObject(std::shared_ptr<const Json>(json_, value), fmt::format("{}: {}", name_, key));
}

Result<std::optional<JsonObject>> JsonObject::find_object(std::string_view key) const {
  if (!contains(key)) return std::optional<JsonObject>();
  return object(key).map([](JsonObject found) { return std::optional<JsonObject>(std::move(found)); });
}

Result<std::vector<JsonObject>> JsonObject::objects(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  const bool good =
      value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& item) { return item.is_object(); });
  if (!good) return failure(wrong(key, "a list of objects"));
  std::vector<JsonObject> out;
  for (const Json& item : *value) {
    out.push_back(
        JsonObject(std::shared_ptr<const Json>(json_, &item), fmt::format("{}: {}[{}]", name_, key, out.size())));
  }
  return out;
}

Result<std::vector<std::string>> JsonObject::texts(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  const bool good =
      value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& item) { return item.is_string(); });
  if (!good) return failure(wrong(key, "a list of strings"));
  return value->get<std::vector<std::string>>();
}

Result<std::vector<double>> JsonObject::numbers(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const Json* value, require(key));
  const bool good = value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& item) {
                      return item.is_number() && std::isfinite(item.get<double>());
                    });
  if (!good) return failure(wrong(key, "a list of numbers"));
  return value->get<std::vector<double>>();
}

Result<std::vector<int64_t>> JsonObject::ids(std::string_view key) const {
  const Json* value = find(key);
  std::vector<int64_t> out;
  if (value == nullptr) return out;
  const auto add = [&](const Json& item) {
    const bool good = item.is_number_integer() && item.get<double>() >= 0 && item.get<double>() < 0x1p31;
    if (good) out.push_back(item.get<int64_t>());
    return good;
  };
  const bool good = value->is_array() ? std::all_of(value->begin(), value->end(), add) : add(*value);
  if (!good) return failure(wrong(key, "a token id or a list of them"));
  return out;
}

}  // namespace kvant::engine
