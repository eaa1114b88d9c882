#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "server/json.h"

namespace kvant::server {

/// Reads the members of a JSON object by name and type, and remembers which have been asked for. An absent member and
/// null are the same: nothing.
class Fields {
 public:
  /// `object` must be an object and outlive this. `path` is what messages put before names, such as "messages[0].".
  explicit Fields(const Json& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  const Json* get(std::string_view name);
  ApiResult<std::optional<bool>> boolean(std::string_view name);
  ApiResult<std::optional<int64_t>> integer(std::string_view name, int64_t least, int64_t most);
  ApiResult<std::optional<double>> number(std::string_view name, double least, double most);
  ApiResult<std::optional<std::string>> string(std::string_view name);
  /// The member if it is an object, else null.
  ApiResult<const Json*> object(std::string_view name);
  ApiResult<const Json*> array(std::string_view name);

  /// Members that mean nothing here but are no mistake.
  void accept(std::initializer_list<std::string_view> names);
  /// Members that nobody has asked for.
  std::vector<std::string> unknown() const;
  std::string name_of(std::string_view name) const { return path_ + std::string(name); }

 private:
  ApiError wrong_type(std::string_view name, const Json& value, std::string_view wanted) const;

  const Json& object_;
  std::string path_;
  std::vector<std::string> known_;
};

/// A name for error messages, such as "an object".
std::string_view type_name(const Json& value);

}  // namespace kvant::server
