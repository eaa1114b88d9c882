#pragma once

#include <cstdint>
#include <optional>

#include "kvant/engine/engine.h"
#include "server/api/api_error.h"
#include "server/api/fields.h"

namespace kvant::server {

/// Fields that completions and chat share.
struct CommonFields {
  engine::GenerateRequest request;    ///< Without a prompt.
  std::optional<int32_t> max_tokens;  ///< As given.
  int32_t choices = 1;
  bool stream = false;
  bool include_usage = false;
};

/// Reads temperature, stop, logit_bias, n, stream and the like.
ApiResult<CommonFields> read_common_fields(Fields& fields, const engine::EngineFacts& facts);

}  // namespace kvant::server
