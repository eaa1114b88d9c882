#pragma once

#include <string>
#include <utility>

#include <tl/expected.hpp>

#include "kvant/core/status.h"
#include "server/http/http_types.h"
#include "server/json.h"

namespace kvant::server {

/// What a client is told when its request is refused or fails.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  ///< The field at fault, if there is one.
  std::string code = {};   ///< For programs, such as "context_length_exceeded"; may be empty.
  Json details = {};       ///< Further members of the error object, or null.

  static ApiError invalid(std::string field, std::string text) {
    return {.message = std::move(text), .param = std::move(field)};
  }
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> refuse(ApiError error) { return tl::unexpected<ApiError>(std::move(error)); }
inline tl::unexpected<ApiError> refuse(std::string field, std::string text) {
  return refuse(ApiError::invalid(std::move(field), std::move(text)));
}

/// {"error": {...}} as OpenAI's clients read it.
Json to_json(const ApiError& error);
HttpResponse to_response(const ApiError& error);
/// What the engine says, as an error of the client or of the server. `param` names the field that it is about, if any.
ApiError to_api_error(const Status& status, std::string param = {});

}  // namespace kvant::server

/// `KVANT_API_ASSIGN(auto x, f())`: x = value of f(), or return its ApiError.
#define KVANT_API_ASSIGN(declaration, expression) \
  KVANT_API_ASSIGN_INNER_(declaration, expression, KVANT_CONCAT_(kvant_api_result_, __LINE__))
#define KVANT_API_ASSIGN_INNER_(declaration, expression, result)          \
  auto result = (expression);                                             \
  if (!result) return ::kvant::server::refuse(std::move(result).error()); \
  declaration = *std::move(result)
