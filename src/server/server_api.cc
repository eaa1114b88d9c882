#include "server/server_api.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "server/access.h"
#include "server/api/answer.h"
#include "server/api/api_error.h"
#include "server/api/chat_request.h"
#include "server/api/completion_request.h"
#include "server/api/tokenize_request.h"
#include "server/json.h"
#include "server/page_response.h"
#include "server/props.h"

namespace kvant::server {
namespace {

constexpr size_t kMaxNamedFields = 20;
constexpr size_t kMaxNameBytes = 64;

ApiError error_of(int status, std::string message) { return {.status = status, .message = std::move(message)}; }

/// Field names come from the client: only plain characters go into a header.
std::string header_list(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kMaxNamedFields); ++i) {
    if (i > 0) out += ", ";
    for (const char c : names[i].substr(0, kMaxNameBytes)) out += c > 0x20 && c < 0x7f && c != ',' ? c : '?';
  }
  if (names.size() > kMaxNamedFields) out += fmt::format(", and {} more", names.size() - kMaxNamedFields);
  return out;
}

std::string_view state_name(EngineHost::State state) {
  switch (state) {
    case EngineHost::State::kLoading: return "loading";
    case EngineHost::State::kReady: return "ok";
    case EngineHost::State::kStuck: return "stuck";
    case EngineHost::State::kFailed: return "failed";
    case EngineHost::State::kDraining: return "draining";
  }
  return "unknown";
}

HttpResponse json_response(const Json& json) { return {.body = to_text(json)}; }

ApiResult<HttpResponse> respond_json(const Json& json) { return json_response(json); }

}  // namespace

ServerApi::ServerApi(EngineHost& host, ApiOptions options)
    : host_(host),
      options_(std::move(options)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

const std::vector<ServerApi::Endpoint>& ServerApi::endpoints() {
  static const std::vector<Endpoint> kEndpoints{
      {"GET", "/health", &ServerApi::health, false},
      {"GET", "/v1/models", &ServerApi::models, true},
      {"POST", "/v1/completions", &ServerApi::completions, true},
      {"POST", "/v1/chat/completions", &ServerApi::chat, true},
      {"POST", "/tokenize", &ServerApi::tokenize_text, true},
      {"POST", "/detokenize", &ServerApi::detokenize_text, true},
      {"GET", "/metrics", &ServerApi::metrics, true},
      {"GET", "/props", &ServerApi::props, true},
  };
  return kEndpoints;
}

HttpService ServerApi::service() {
  HttpService service;
  for (const Endpoint& endpoint : endpoints()) {
    service.routes.push_back(
        {.method = endpoint.method, .path = endpoint.path, .handler = [this, &endpoint](const HttpRequest& request) {
           return run(endpoint, request);
         }});
  }
  for (const PageFile& file : page_files()) {
    service.routes.push_back({.method = "GET", .path = page_path(file), .handler = [&file](const HttpRequest&) {
                                return page_response(file);
                              }});
  }
  service.headers.emplace_back("X-Content-Type-Options", "nosniff");
  if (!options_.cors_origin.empty()) {
    service.headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
    service.headers.emplace_back("Vary", "Origin");
  }
  service.filter = [this](const HttpRequest& request, HttpResponse& response) { return refused(request, response); };
  service.error = [](int status, const std::string& message) { return to_response(error_of(status, message)); };
  return service;
}

HttpResponse ServerApi::run(const Endpoint& endpoint, const HttpRequest& request) {
  HttpResponse response;
  try {
    response = (this->*endpoint.member)(request);
  } catch (const std::exception& error) {  // Out of memory, for one: this request fails, the others go on.
    response = to_response(error_of(500, error.what()));
  }
  counts_.add(endpoint.path, response.status);
  return response;
}

HttpResponse ServerApi::handle(const HttpRequest& request) {
  const HttpService all = service();
  HttpResponse response;
  if (all.filter(request, response)) return response;
  const auto route = std::find_if(all.routes.begin(), all.routes.end(), [&](const HttpRoute& one) {
    return one.method == request.method && one.path == request.path;
  });
  return route == all.routes.end() ? all.error(404, "there is nothing here") : route->handler(request);
}

bool ServerApi::refused(const HttpRequest& request, HttpResponse& response) const {
  if (is_foreign_origin(request, options_.cors_origin)) {
    response = to_response(error_of(403, "web pages of other sites may not ask; see --cors-origin"));
    return true;
  }
  if (request.method == "OPTIONS" && !options_.cors_origin.empty()) {  // A browser asks whether it may ask.
    response = {.status = 204, .content_type = "text/plain", .body = {}};
    response.headers = {{"Access-Control-Allow-Methods", "GET, POST"},
                        {"Access-Control-Allow-Headers", "authorization, content-type"},
                        {"Access-Control-Max-Age", "600"}};
    return true;
  }
  // The page holds nothing that needs a key; it asks for one.
  if (options_.api_keys.empty() || is_page_path(request.path)) return false;
  const auto& all = endpoints();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Endpoint& e) { return request.path == e.path; });
  if (found != all.end() && !found->needs_key) return false;
  if (holds_key(request.authorization, options_.api_keys)) return false;
  response = to_response(error_of(401, "an API key is needed: Authorization: Bearer KEY"));
  return true;
}

HttpResponse ServerApi::health(const HttpRequest& /*request*/) {
  const EngineHost::Health health = host_.health();
  Json body = {{"status", state_name(health.state)}};
  if (!health.reason.empty()) body["reason"] = health.reason;
  return {.status = health.state == EngineHost::State::kReady ? 200 : 503, .body = to_text(body)};
}

HttpResponse ServerApi::models(const HttpRequest& /*request*/) {
  Json model = {{"id", options_.model_name}, {"object", "model"}, {"created", created_}, {"owned_by", "kvant"}};
  if (const engine::Engine* engine = host_.engine()) model["max_model_len"] = engine->facts().context;
  return {.body = to_text({{"object", "list"}, {"data", Json::array({model})}})};
}

template <class Read, class Respond>
HttpResponse ServerApi::with_body(const HttpRequest& request, Read read, Respond respond) {
  const auto body = parse_json(request.body);
  if (!body) return to_response(to_api_error(body.error()));
  if (!body->is_object()) return to_response(error_of(400, "the body must be a JSON object"));
  const engine::Engine* engine = host_.engine();
  if (engine == nullptr) {
    ApiError error = error_of(503, host_.health().reason);
    error.code = "not_ready";
    return to_response(error);
  }
  // Each key has cached prefixes of its own: how fast an answer comes tells nothing about other people's prompts.
  const RequestContext context{.engine = *engine,
                               .model_name = options_.model_name,
                               .cache_salt = options_.api_keys.empty() ? std::string() : request.authorization};
  std::vector<std::string> ignored;
  auto value = read(*body, context, ignored);
  ApiResult<HttpResponse> response = value ? respond(*std::move(value)) : refuse(std::move(value).error());
  HttpResponse out = response ? *std::move(response) : to_response(response.error());
  if (!ignored.empty()) out.headers.emplace_back("X-Kvant-Ignored-Fields", header_list(ignored));
  return out;
}

template <class Read>
HttpResponse ServerApi::generate(const HttpRequest& request, Read read) {
  return with_body(request, read,
                   [&](PreparedRequest prepared) { return answer(host_, std::move(prepared), request); });
}

HttpResponse ServerApi::completions(const HttpRequest& request) { return generate(request, read_completion_request); }

HttpResponse ServerApi::chat(const HttpRequest& request) { return generate(request, read_chat_request); }

HttpResponse ServerApi::tokenize_text(const HttpRequest& request) { return with_body(request, tokenize, respond_json); }

HttpResponse ServerApi::detokenize_text(const HttpRequest& request) {
  return with_body(request, detokenize, respond_json);
}

HttpResponse ServerApi::metrics(const HttpRequest& /*request*/) {
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_text(host_, counts_)};
}

HttpResponse ServerApi::props(const HttpRequest& /*request*/) {
  const engine::Engine* engine = host_.engine();
  if (engine == nullptr) return to_response(error_of(503, host_.health().reason));
  return json_response(props_json(engine->facts(), host_, options_.model_name));
}

}  // namespace kvant::server
