#include "server/api/fields.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace kvant::server {

std::string_view type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "an array";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return "an integer";
    case Json::value_t::number_float: return "a number with a fraction";
    case Json::value_t::binary:
    case Json::value_t::discarded: break;
  }
  return "no JSON value";
}

ApiError Fields::wrong_type(std::string_view name, const Json& value, std::string_view wanted) const {
  return ApiError::invalid(name_of(name),
                           fmt::format("'{}' must be {}, not {}", name_of(name), wanted, type_name(value)));
}

const Json* Fields::get(std::string_view name) {
  known_.emplace_back(name);
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

ApiResult<std::optional<bool>> Fields::boolean(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return refuse(wrong_type(name, *value, "a boolean"));
  return value->get<bool>();
}

ApiResult<std::optional<int64_t>> Fields::integer(std::string_view name, int64_t least, int64_t most) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  // 5.0 is an integer to clients whose language has one kind of number.
  if (!value->is_number() || std::trunc(number) != number) return refuse(wrong_type(name, *value, "an integer"));
  if (number < static_cast<double>(least) || number > static_cast<double>(most)) {
    return refuse(name_of(name),
                  fmt::format("'{}' is {} and must be from {} to {}", name_of(name), value->dump(), least, most));
  }
  if (value->is_number_unsigned()) {
    // Above 2^53 a double is not exact.
    return static_cast<int64_t>(std::min(value->get<uint64_t>(), static_cast<uint64_t>(most)));
  }
  return value->is_number_integer() ? value->get<int64_t>() : static_cast<int64_t>(number);
}

ApiResult<std::optional<double>> Fields::number(std::string_view name, double least, double most) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return refuse(wrong_type(name, *value, "a number"));
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    return refuse(name_of(name),
                  fmt::format("'{}' is {} and must be from {} to {}", name_of(name), value->dump(), least, most));
  }
  return number;
}

ApiResult<std::optional<std::string>> Fields::string(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return refuse(wrong_type(name, *value, "a string"));
  return value->get<std::string>();
}

ApiResult<const Json*> Fields::object(std::string_view name) {
  const Json* value = get(name);
  if (value != nullptr && !value->is_object()) return refuse(wrong_type(name, *value, "an object"));
  return value;
}

ApiResult<const Json*> Fields::array(std::string_view name) {
  const Json* value = get(name);
  if (value != nullptr && !value->is_array()) return refuse(wrong_type(name, *value, "an array"));
  return value;
}

void Fields::accept(std::initializer_list<std::string_view> names) {
  known_.insert(known_.end(), names.begin(), names.end());
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : object_.items())
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) out.push_back(path_ + name);
  return out;
}

}  // namespace kvant::server
