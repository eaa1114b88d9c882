#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvant/core/status.h"
#include "server/http/http_types.h"

namespace kvant::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  ///< 0 = any free one.
  size_t max_head_bytes = size_t{32} << 10;
  size_t max_body_bytes = size_t{16} << 20;
  size_t max_connections = 512;                    ///< Served at once; others wait to be accepted.
  std::chrono::milliseconds head_timeout{10'000};  ///< From the first byte of a request to the end of its head.
  std::chrono::milliseconds body_timeout{60'000};  ///< From there to the end of its body.
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds idle_timeout{60'000};  ///< Between two requests of a connection.
};

/// What is served, and what is said where no route answers.
struct HttpService {
  std::vector<HttpRoute> routes;
  std::vector<std::pair<std::string, std::string>> headers;  ///< Of every response.
  /// Sees every request before its body is read; a response ends it there. May be empty.
  std::function<bool(const HttpRequest& request, HttpResponse& response)> filter;
  /// The response to what never reaches a handler: 400, 404, 405, 408, 413, 415, 431, 500.
  std::function<HttpResponse(int status, const std::string& message)> error;
};

/// An HTTP/1.1 server, one thread per connection. Handlers run on these threads, many at once.
class HttpServer {
 public:
  /// Listens from here on; connections wait until `run`.
  static Result<std::unique_ptr<HttpServer>> bind(const HttpOptions& options, HttpService service);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  /// Serves until `stop`; handlers that run then are waited for.
  virtual Status run() = 0;
  /// From any thread.
  virtual void stop() = 0;
};

}  // namespace kvant::server
