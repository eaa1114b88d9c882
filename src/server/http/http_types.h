#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvant::server {

/// What a handler sees of a request; nothing of it belongs to an HTTP library.
struct HttpRequest {
  std::string method;
  std::string path;  ///< Without the query.
  std::string authorization = {};
  std::string origin = {};
  std::string host = {};
  std::string body = {};
  /// Whether nobody waits for the answer any more. May be empty: then somebody does.
  std::function<bool()> client_gone = {};
};

/// Sends a part of a body; false when the client is gone.
using BodyWriter = std::function<bool(std::string_view part)>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  /// Writes the body part by part after the head has been sent; `body` is not used then.
  std::function<void(const BodyWriter& write)> stream = {};
};

using HttpHandler = std::function<HttpResponse(const HttpRequest& request)>;

struct HttpRoute {
  std::string method;  ///< GET or POST.
  std::string path;    ///< Exact; letters, digits, '/', '_' and '.' only.
  HttpHandler handler;
};

}  // namespace kvant::server
