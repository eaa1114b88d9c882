#pragma once

#include <string_view>

#include "engine/loader/gguf.h"
#include "engine/loader/json_object.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// Refuse models of multi-head latent attention (MLA): they cache one latent vector per token, in place of keys and
/// values of heads, and no KV format of kvant, quantised or not, is made for that.
Status refuse_latent_attention(const JsonObject& config);
Status refuse_latent_attention(const GgufFile& file, std::string_view architecture);

}  // namespace kvant::engine
