#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "server/engine_host.h"
#include "server/http/http_server.h"
#include "server/http/http_types.h"
#include "server/metrics.h"

namespace kvant::server {

struct ApiOptions {
  std::string model_name;                  ///< As clients see it.
  std::vector<std::string> api_keys = {};  ///< None: everybody may ask.
  std::string cors_origin = {};  ///< Web pages from there may ask; "*" = from anywhere, empty = from nowhere else.
};

/// The endpoints. Knows no sockets: every handler is a function from a request to a response.
class ServerApi {
 public:
  ServerApi(EngineHost& host, ApiOptions options);

  /// Refers to this.
  HttpService service();
  HttpResponse handle(const HttpRequest& request);

 private:
  using Member = HttpResponse (ServerApi::*)(const HttpRequest& request);
  struct Endpoint {
    const char* method;
    const char* path;
    Member member;
    bool needs_key;
  };
  static const std::vector<Endpoint>& endpoints();

  HttpResponse health(const HttpRequest& request);
  HttpResponse models(const HttpRequest& request);
  HttpResponse completions(const HttpRequest& request);
  HttpResponse chat(const HttpRequest& request);
  HttpResponse tokenize_text(const HttpRequest& request);
  HttpResponse detokenize_text(const HttpRequest& request);
  HttpResponse metrics(const HttpRequest& request);
  HttpResponse props(const HttpRequest& request);
  HttpResponse run(const Endpoint& endpoint, const HttpRequest& request);

  bool refused(const HttpRequest& request, HttpResponse& response) const;
  /// Parses the body and hands it to `read(body, context, ignored)`; what comes of it goes to `respond`.
  template <class Read, class Respond>
  HttpResponse with_body(const HttpRequest& request, Read read, Respond respond);
  template <class Read>
  HttpResponse generate(const HttpRequest& request, Read read);

  EngineHost& host_;
  ApiOptions options_;
  int64_t created_;
  ResponseCounts counts_;
};

}  // namespace kvant::server
