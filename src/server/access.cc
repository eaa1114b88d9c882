#include "server/access.h"

#include <cctype>

namespace kvant::server {

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0u : 1u;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0;
}

bool holds_key(std::string_view authorization, const std::vector<std::string>& keys) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kScheme[i]) return false;
  bool found = false;
  for (const std::string& key : keys) found |= equal_in_constant_time(authorization.substr(kScheme.size()), key);
  return found;
}

bool is_foreign_origin(const HttpRequest& request, std::string_view allowed) {
  if (request.origin.empty() || allowed == "*" || request.origin == allowed) return false;
  const size_t scheme = request.origin.find("://");
  return scheme == std::string::npos || request.host.empty() || request.origin.substr(scheme + 3) != request.host;
}

}  // namespace kvant::server
