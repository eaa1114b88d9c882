#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "kvant/core/status.h"

namespace kvant::server {

/// Keeps fields in the order they are written in.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_depth = 64;
  size_t max_values = 1 << 20;  ///< Numbers, strings, arrays, ... together.
};

/// Strict JSON in UTF-8, within limits; numbers that no double holds are refused.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

/// One line; bytes that are not UTF-8 become U+FFFD.
std::string to_text(const Json& json);

}  // namespace kvant::server
