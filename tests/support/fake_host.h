#pragma once

#include <memory>
#include <string>
#include <utility>

#include "server/engine_host.h"
#include "server/server_api.h"
#include "support/fake_engine.h"

namespace kvant::testing {

/// The server's handlers over a fake engine, without sockets.
class FakeHost {
 public:
  explicit FakeHost(std::string script = "hello", server::ApiOptions options = {.model_name = "fake"},
                    server::EngineHostOptions host_options = {.max_queue = 4})
      : host_(std::move(host_options),
              [this, script](const engine::EngineOptions&) -> Result<std::unique_ptr<engine::Engine>> {
                auto made = std::make_unique<FakeEngine>(script);
                engine_ = made.get();
                return made;
              }),
        api_(host_, std::move(options)) {
    host_.start();
    static_cast<void>(host_.wait_until_loaded());
  }

  server::EngineHost& host() { return host_; }
  FakeEngine& engine() { return *engine_; }
  server::HttpResponse get(std::string path, std::string authorization = {}) {
    return api_.handle({.method = "GET", .path = std::move(path), .authorization = std::move(authorization)});
  }
  server::HttpResponse post(std::string path, std::string body) {
    return api_.handle({.method = "POST", .path = std::move(path), .body = std::move(body)});
  }
  server::HttpResponse handle(const server::HttpRequest& request) { return api_.handle(request); }

  /// The whole body, streamed or not.
  static std::string body_of(const server::HttpResponse& response) {
    if (!response.stream) return response.body;
    std::string out;
    response.stream([&](std::string_view part) {
      out += part;
      return true;
    });
    return out;
  }

 private:
  FakeEngine* engine_ = nullptr;
  server::EngineHost host_;
  server::ServerApi api_;
};

}  // namespace kvant::testing
