#pragma once

#include <cstdint>

#include "kvant/attn/append.h"

namespace kvant::attn::cpu {

/// Writes tokens [first, last) of `args` to their slots, which are valid.
void append_tokens(const AppendArgs& args, int64_t first, int64_t last);

/// Re-encodes page tokens [first, last), counted over all pages of `args` (age * page size + token).
void age_tokens(const AgeArgs& args, int64_t first, int64_t last);

}  // namespace kvant::attn::cpu
