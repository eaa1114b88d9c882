#pragma once

#include <nlohmann/json.hpp>

namespace kvant::cli {

/// Keeps fields in the order they are written in.
using Json = nlohmann::ordered_json;

/// Prints one object and a line end on stdout. Bytes that are not UTF-8 become U+FFFD, NaN becomes null.
void print_json(const Json& json);

}  // namespace kvant::cli
