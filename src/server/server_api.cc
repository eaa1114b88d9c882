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

namespace kvant::server {
namespace {

constexpr size_t kMaxNamedFields = 20;
constexpr size_t kMaxNameBytes = 64;

ApiError error_of(int status, std::string message) {
  return {.status = status, .message = std::move(message), .param = {}, .code = {}};
}

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
  };
  return kEndpoints;
}

HttpService ServerApi::service() {
  HttpService service;
  for (const Endpoint& endpoint : endpoints()) {
    service.routes.push_back(
        {.method = endpoint.method, .path = endpoint.path, .handler = [this, &endpoint](const HttpRequest& request) {
           return (this->*endpoint.member)(request);
         }});
  }
  service.filter = [this](const HttpRequest& request, HttpResponse& response) { return refused(request, response); };
  service.error = [](int status, const std::string& message) { return to_response(error_of(status, message)); };
  return service;
}

HttpResponse ServerApi::handle(const HttpRequest& request) {
  HttpResponse response;
  if (refused(request, response)) return response;
  for (const Endpoint& endpoint : endpoints()) {
    if (request.method == endpoint.method && request.path == endpoint.path) return (this->*endpoint.member)(request);
  }
  return to_response(error_of(404, "there is nothing here"));
}

bool ServerApi::refused(const HttpRequest& request, HttpResponse& response) const {
  if (is_foreign_origin(request, options_.cors_origin)) {
    response = to_response(error_of(403, "web pages of other sites may not ask; see --cors-origin"));
    return true;
  }
  if (options_.api_keys.empty()) return false;
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
  return {.status = health.state == EngineHost::State::kReady ? 200 : 503,
          .body = to_text(body),
          .headers = {},
          .stream = {}};
}

HttpResponse ServerApi::models(const HttpRequest& /*request*/) {
  Json model = {{"id", options_.model_name}, {"object", "model"}, {"created", created_}, {"owned_by", "kvant"}};
  if (const engine::Engine* engine = host_.engine()) model["max_model_len"] = engine->facts().context;
  return {.body = to_text({{"object", "list"}, {"data", Json::array({model})}}), .headers = {}, .stream = {}};
}

template <class Read>
HttpResponse ServerApi::generate(const HttpRequest& request, Read read) {
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
  auto prepared = read(*body, context, ignored);
  ApiResult<HttpResponse> response =
      prepared ? answer(host_, *std::move(prepared), request) : refuse(std::move(prepared).error());
  HttpResponse out = response ? *std::move(response) : to_response(response.error());
  if (!ignored.empty()) out.headers.emplace_back("X-Kvant-Ignored-Fields", header_list(ignored));
  return out;
}

HttpResponse ServerApi::completions(const HttpRequest& request) { return generate(request, read_completion_request); }

HttpResponse ServerApi::chat(const HttpRequest& request) { return generate(request, read_chat_request); }

}  // namespace kvant::server
