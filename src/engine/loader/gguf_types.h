#pragma once

#include <cstdint>
#include <string>

#include "engine/loader/gguf.h"

namespace kvant::engine {

/// One row per tensor encoding that kvant reads.
struct GgufTypeInfo {
  GgufType type;
  std::string_view name;
  int32_t block_elements;
  int32_t block_bytes;
};

/// Null for a type id that kvant does not read.
const GgufTypeInfo* find_gguf_type(uint32_t id);

/// Name of any ggml type id, also of those that kvant does not read, such as "Q2_K" or "type 77".
std::string describe_gguf_type(uint32_t id);

/// "F32, F16, ...": for refusals.
std::string supported_gguf_types();

}  // namespace kvant::engine
