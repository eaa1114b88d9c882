#include "server/api/response_format.h"

#include <fmt/format.h>

namespace kvant::server {

ApiResult<std::optional<engine::AnswerShape>> read_response_format(Fields& fields) {
  KVANT_API_ASSIGN(const Json* format, fields.object("response_format"));
  if (format == nullptr) return std::nullopt;
  Fields inner(*format, "response_format.");
  KVANT_API_ASSIGN(const auto type, inner.string("type"));
  if (!type) return refuse("response_format.type", "'response_format.type' is missing");
  if (*type == "text") return std::nullopt;
  if (*type == "json_object") return engine::AnswerShape{.kind = engine::AnswerShape::Kind::kJsonObject};
  if (*type != "json_schema") {
    return refuse("response_format.type",
                  fmt::format("'response_format.type' is '{}' and must be 'text', 'json_object' or 'json_schema'",
                              type->substr(0, 32)));
  }
  KVANT_API_ASSIGN(const Json* named, inner.object("json_schema"));
  if (named == nullptr) return refuse("response_format.json_schema", "'response_format.json_schema' is missing");
  Fields schema_fields(*named, "response_format.json_schema.");
  KVANT_API_ASSIGN(const Json* schema, schema_fields.object("schema"));
  if (schema == nullptr)
    return refuse("response_format.json_schema.schema", "'response_format.json_schema.schema' is missing");
  return engine::AnswerShape{.kind = engine::AnswerShape::Kind::kJsonSchema, .schema = to_text(*schema)};
}

}  // namespace kvant::server
