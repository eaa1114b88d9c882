#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "server/http/http_types.h"

namespace kvant::server {

/// Takes a time that depends on the length of `given` alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

/// Whether the Authorization header holds one of the keys. Compares with all of them.
bool holds_key(std::string_view authorization, const std::vector<std::string>& keys);

/// Whether a request comes from a web page of another site than this server's own and of `allowed` ("*" = any).
bool is_foreign_origin(const HttpRequest& request, std::string_view allowed);

}  // namespace kvant::server
