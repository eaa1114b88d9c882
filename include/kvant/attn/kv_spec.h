#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvant/attn/kv_format.h"
#include "kvant/core/dtype.h"
#include "kvant/core/status.h"

namespace kvant::attn {

/// How many tokens of a sequence stay exact (f16): the first `head` and the newest `tail`. Both 0 = no edges.
struct ExactEdges {
  int32_t head = 0;
  int32_t tail = 0;

  constexpr bool enabled() const { return head > 0 || tail > 0; }
  friend bool operator==(const ExactEdges&, const ExactEdges&) = default;
};

/// A cache encoding as users name it on `--kv`: `FORMAT[:policy=P][:cond=none|mean|full][:edges=H,T|none]`.
/// FORMAT is a format name, `FORMAT-plain`, `k=F/v=F` or `auto`; docs/kv_formats/README.md lists the defaults.
struct KvSpec {
  std::string text;        ///< As given.
  bool automatic = false;  ///< `auto`: formats are set by `resolve`.
  KvFormat k_format = KvFormat::kBf16;
  KvFormat v_format = KvFormat::kBf16;
  ScalePolicy policy = ScalePolicy::kAmax;
  KeyConditioning conditioning = KeyConditioning::kNone;
  ExactEdges edges;

  /// Compares the meaning, not the text.
  friend bool operator==(const KvSpec& a, const KvSpec& b) {
    return a.automatic == b.automatic && a.k_format == b.k_format && a.v_format == b.v_format && a.policy == b.policy &&
           a.conditioning == b.conditioning && a.edges == b.edges;
  }

  bool quantised() const { return info(k_format).quantised || info(v_format).quantised; }
  /// Canonical text that parses back to the same value, such as "nvfp4:policy=search:cond=full:edges=16,32".
  std::string to_string() const;
};

/// Refuses what it does not know by name: format, key, policy, negative edges, edges or conditioning on a 16-bit
/// format, a policy without an nvfp4 plane.
Result<KvSpec> parse_kv_spec(std::string_view text);

/// Replaces `auto` by the 16-bit format that matches the model's dtype (bf16 for f32 or quantised weights); `text`
/// stays.
KvSpec resolve_kv_spec(const KvSpec& spec, DType model_dtype);

}  // namespace kvant::attn
