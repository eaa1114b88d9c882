#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "command.h"
#include "facts.h"
#include "file_io.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/engine/engine.h"
#include "model_options.h"
#include "server/engine_host.h"
#include "server/http/http_server.h"
#include "server/server_api.h"
#include "serving_options.h"

namespace kvant::cli {
namespace {

struct ServeOptions {
  ModelOptions model;
  ServingOptions serving{.parallel = 8};
  server::HttpOptions http;
  server::ApiOptions api;
  std::string api_key_file;
  int32_t max_queue = 64;
  int32_t max_body_mib = 16;
  int32_t watchdog_seconds = 10;
  int32_t drain_seconds = 30;
};

constexpr const char* kExamples =
    "  kvant serve model.gguf --kv nvfp4\n"
    "  kvant serve model.gguf --host 0.0.0.0 --port 8000 --api-key-file keys.txt --parallel 16\n"
    "  curl localhost:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'\n";

void add_options(CLI::App& app, ServeOptions& options) {
  add_model_options(app, options.model);
  app.add_option("--host", options.http.host, "Address to listen on; 0.0.0.0 = all of them")
      ->capture_default_str()
      ->type_name("ADDRESS");
  app.add_option("--port", options.http.port, "Port to listen on; 0 = any free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->type_name("N");
  app.add_option("--parallel", options.serving.parallel, "Requests that run at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  app.add_option("--max-queue", options.max_queue, "Requests that may wait besides; more are refused with 429")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000))
      ->type_name("N");
  add_serving_options(app, options.serving);
  app.add_option("--model-name", options.api.model_name,
                 "Name that clients see; the file's name without its ending if "
                 "left out")
      ->type_name("NAME");
  app.add_option("--api-key", options.api.api_keys, "Key that clients must send; may be given several times")
      ->type_name("KEY")
      ->allow_extra_args(false);
  app.add_option("--api-key-file", options.api_key_file, "Read keys from a file, one per line")->type_name("FILE");
  app.add_option("--cors-origin", options.api.cors_origin,
                 "Let web pages of this origin ask, such as https://example.org; * = of any")
      ->type_name("ORIGIN");
  app.add_option("--max-body", options.max_body_mib, "Longest request body in MiB")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_option("--watchdog", options.watchdog_seconds,
                 "Seconds that a step may take before /health says that the engine is stuck")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400))
      ->type_name("N");
  app.add_option("--drain", options.drain_seconds, "Seconds that running requests get after SIGTERM")
      ->capture_default_str()
      ->check(CLI::Range(0, 86400))
      ->type_name("N");
}

/// SIGTERM and SIGINT, blocked for this thread and those it starts, so that one of them can be waited for.
class ShutdownSignals {
 public:
  ShutdownSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, &previous_);
  }
  ~ShutdownSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  bool arrived_within(std::chrono::milliseconds time) const {
    const timespec limit{.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1'000'000};
    return sigtimedwait(&set_, nullptr, &limit) > 0;
  }

 private:
  sigset_t set_ = {};
  sigset_t previous_ = {};
};

Result<server::EngineHostOptions> host_options(const ServeOptions& options, ProgressBar& bar) {
  server::EngineHostOptions out{.max_queue = options.max_queue,
                                .watchdog = std::chrono::seconds(options.watchdog_seconds)};
  KVANT_FAIL_IF_ERROR(apply_serving_options(options.serving, out.engine));
  KVANT_ASSIGN_OR_FAIL(out.engine, engine_options(options.model, std::move(out.engine), bar));
  return out;
}

/// The name of a folder, or of a file without its ending.
std::string name_of(const std::filesystem::path& model) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(model, ignored)) return model.stem().string();
  return std::filesystem::weakly_canonical(model, ignored).filename().string();
}

Result<server::ApiOptions> api_options(const ServeOptions& options) {
  server::ApiOptions out = options.api;
  if (out.model_name.empty()) out.model_name = name_of(options.model.model);
  if (!options.api_key_file.empty()) {
    KVANT_ASSIGN_OR_FAIL(const std::string text, read_text(options.api_key_file));
    for (std::string& key : lines_of(text))
      if (!key.empty()) out.api_keys.push_back(std::move(key));
    if (out.api_keys.empty())
      return failure(StatusCode::kInvalidArgument, fmt::format("'{}' holds no key", options.api_key_file));
  }
  for (const std::string& key : out.api_keys)
    if (key.empty()) return failure(StatusCode::kInvalidArgument, "--api-key needs a key that is not empty");
  return out;
}

std::string address(const server::HttpOptions& http, int port) {
  const bool is_v6 = http.host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", is_v6 ? "[" : "", http.host, is_v6 ? "]" : "", port);
}

void say(const std::string& text) { std::fprintf(stderr, "kvant: %s\n", text.c_str()); }

/// Until a signal comes, or loading fails.
Status serve_until_told(server::EngineHost& host, const ShutdownSignals& signals) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  bool announced = false;
  while (!signals.arrived_within(kLook)) {
    const server::EngineHost::State state = host.health().state;
    if (state == server::EngineHost::State::kFailed) return host.wait_until_loaded();
    if (announced || host.engine() == nullptr) continue;
    announced = true;
    const engine::EngineFacts& facts = host.engine()->facts();
    say(fmt::format("ready: {} | context {} | {} at once", facts_text(facts), facts.context, facts.max_sequences));
  }
  return {};
}

Status serve(const ServeOptions& options) {
  const ShutdownSignals signals;
  ProgressBar bar;
  KVANT_ASSIGN_OR_RETURN(server::EngineHostOptions hosting, host_options(options, bar));
  KVANT_ASSIGN_OR_RETURN(server::ApiOptions api_settings, api_options(options));
  server::HttpOptions http_settings = options.http;
  http_settings.max_body_bytes = static_cast<size_t>(options.max_body_mib) << 20;

  server::EngineHost host(std::move(hosting));
  server::ServerApi api(host, std::move(api_settings));
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<server::HttpServer> http,
                         server::HttpServer::bind(http_settings, api.service()));
  std::thread listener([&] { static_cast<void>(http->run()); });
  say(fmt::format("listening on {}", address(http_settings, http->port())));
  host.start();
  Status status = serve_until_told(host, signals);
  if (status.ok()) {
    say("shutting down: running requests are finished first");
    host.drain(std::chrono::seconds(options.drain_seconds), [&] { return signals.arrived_within({}); });
  }
  host.give_up();
  http->stop();
  listener.join();
  return status;
}

}  // namespace

void add_serve(CLI::App& parent, Action& action) {
  add_command<ServeOptions>(parent, action, "serve", "Serve a model over HTTP, for OpenAI clients and the browser",
                            kExamples, add_options, serve);
}

}  // namespace kvant::cli
