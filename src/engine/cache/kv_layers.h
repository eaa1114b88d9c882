#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kvant/attn/kv_spec.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// Reads `--kv-layers`: rules "LAYERS=SPEC" separated by ';', LAYERS being '*' or numbers and ranges separated by ','
/// ("0,27=bf16;4-7=e4m3;*=nvfp4"). The first rule that names a layer counts; a layer without one follows `--kv`. An
/// empty text gives no rule to any layer.
Result<std::vector<std::optional<attn::KvSpec>>> parse_kv_layers(std::string_view text, int32_t num_layers);

}  // namespace kvant::engine
