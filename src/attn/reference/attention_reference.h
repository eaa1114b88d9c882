#pragma once

#include <vector>

#include "kvant/attn/attention.h"

namespace kvant::attn::reference {

struct AttentionResult {
  std::vector<double> out;  ///< [num_tokens, num_q_heads, head_dim_v]
  std::vector<double> lse;  ///< [num_tokens, num_q_heads] natural log, without the sink
};

/// The whole contract of `run` in fp64 over the stored bytes, key by key. For tests; trusts its input.
AttentionResult attention(const AttnDesc& desc, const AttnArgs& args);

}  // namespace kvant::attn::reference
