#include "server/api/api_error.h"

#include <string_view>

namespace kvant::server {
namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

Json to_json(const ApiError& error) {
  Json out = {{"message", error.message},
              {"type", type_of(error.status)},
              {"param", error.param.empty() ? Json() : Json(error.param)},
              {"code", error.code.empty() ? Json() : Json(error.code)}};
  if (error.details.is_object()) out.update(error.details);
  return {{"error", std::move(out)}};
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = to_text(to_json(error))};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiError to_api_error(const Status& status, std::string param) {
  ApiError out{.message = status.message(), .param = std::move(param)};
  switch (status.code()) {
    case StatusCode::kInvalidArgument: break;
    case StatusCode::kUnsupported: out.code = "unsupported"; break;
    case StatusCode::kResourceExhausted: out.code = "does_not_fit"; break;
    case StatusCode::kOk:
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kCudaError:
    case StatusCode::kInternal: out.status = 500; break;
  }
  return out;
}

}  // namespace kvant::server
