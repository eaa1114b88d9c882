#pragma once

#include <string>

#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::cli {

/// Prompt tokens that were computed (not found in the cache) per second; 0 when nothing was timed.
double prompt_tokens_per_s(const engine::Generation& generation);
double generation_tokens_per_s(const engine::Generation& generation);

/// "kv SPEC | bytes/token | scales | route | weights | device": what is in effect.
std::string facts_text(const engine::EngineFacts& facts);

/// One line on stderr: the cache in effect, bytes per token, scale source, route, speeds.
void print_facts(const engine::Generation& generation, const engine::EngineFacts& facts);

/// kUnsupported when what is in effect differs from the SPEC asked for, or a quantised cache has no scales.
Status check_strict(const std::string& requested_spec, const engine::EngineFacts& facts);

}  // namespace kvant::cli
