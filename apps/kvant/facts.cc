#include "facts.h"

#include <cstdio>

#include <fmt/format.h>

#include "kvant/attn/kv_spec.h"

namespace kvant::cli {
namespace {

double rate(int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0; }

}  // namespace

double prompt_tokens_per_s(const engine::Generation& generation) {
  return rate(generation.prompt_tokens - generation.reused_tokens, generation.prompt_seconds);
}

double generation_tokens_per_s(const engine::Generation& generation) {
  return rate(static_cast<int64_t>(generation.token_ids.size()), generation.generation_seconds);
}

std::string facts_text(const engine::EngineFacts& facts) {
  return fmt::format("kv {} | {:.0f} bytes/token | scales: {} | route {} | weights {} | {}", facts.kv_format,
                     facts.kv_bytes_per_token, facts.kv_scale_source, facts.route, facts.weights, facts.device);
}

void print_facts(const engine::Generation& generation, const engine::EngineFacts& facts) {
  const std::string line =
      fmt::format("[{} | prompt {} tokens, {:.1f}/s | generated {} tokens, {:.1f}/s | {}]", facts_text(facts),
                  generation.prompt_tokens, prompt_tokens_per_s(generation), generation.token_ids.size(),
                  generation_tokens_per_s(generation), to_string(generation.finish_reason));
  std::fprintf(stderr, "%s\n", line.c_str());
}

Status check_strict(const std::string& requested_spec, const engine::EngineFacts& facts) {
  KVANT_ASSIGN_OR_RETURN(const attn::KvSpec requested, attn::parse_kv_spec(requested_spec));
  if (!requested.automatic && requested.to_string() != facts.kv_format) {
    return {StatusCode::kUnsupported, fmt::format("--strict: KV cache '{}' was asked for, '{}' is in effect",
                                                  requested.to_string(), facts.kv_format)};
  }
  if (requested.quantised() && requested.conditioning != attn::KeyConditioning::kNone &&
      facts.kv_scale_source == "none") {
    return {StatusCode::kUnsupported,
            fmt::format("--strict: KV cache '{}' has neither a profile nor scales; run kvant calibrate and pass "
                        "--kv-profile",
                        facts.kv_format)};
  }
  return {};
}

}  // namespace kvant::cli
