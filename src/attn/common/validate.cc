#include "kvant/attn/validate.h"

#include <cmath>

#include <fmt/format.h>

#include "kvant/attn/kv_format.h"
#include "kvant/attn/kv_layout.h"
#include "kvant/attn/mask.h"

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
Status unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }

std::string known_formats() {
  std::string names = "auto, fp8";
  for (const KvFormatInfo& row : kKvFormats) names += fmt::format(", {}", row.name);
  return names;
}

KvFormat model_format(DType dtype) {
  switch (dtype) {
    case DType::kF32: return KvFormat::kBf16;
    case DType::kF16: return KvFormat::kF16;
    case DType::kBf16: return KvFormat::kBf16;
  }
  return KvFormat::kBf16;
}

Result<KvFormat> resolve_format(std::string_view which, const std::string& name, const ModelAttentionConfig& config) {
  if (name == "auto") {
    switch (config.checkpoint) {
      case CheckpointKv::kNone: return model_format(config.model_dtype);
      case CheckpointKv::kFp8Scales: return KvFormat::kE4m3;
      case CheckpointKv::kFp4Scales: return KvFormat::kNvfp4;
    }
  }
  if (const std::optional<KvFormat> format = parse_kv_format(name)) return *format;
  return failure(invalid(fmt::format("unknown {} cache format \"{}\"; known: {}", which, name, known_formats())));
}

Status check_kind(const ModelAttentionConfig& config, const KvLayout& layout) {
  if (config.mla && (layout.k_format == KvFormat::kNvfp4 || layout.v_format == KvFormat::kNvfp4)) {
    return invalid(
        "an nvfp4 cache cannot hold the latents of MLA layers, whose scales are per head; use e4m3 (fp8) or auto");
  }
  if (config.mla) {
    return unsupported(
        "MLA layers need a latent-attention kernel; kvant offers multi-head and grouped-query attention");
  }
  if (config.cross_attention) {
    return unsupported("encoder and cross attention are not offered; kvant offers decoder self-attention");
  }
  return {};
}

Status check_checkpoint(const ModelAttentionConfig& config, const KvLayout& layout) {
  const bool e5m2 = layout.k_format == KvFormat::kE5m2 || layout.v_format == KvFormat::kE5m2;
  if (e5m2 && config.checkpoint != CheckpointKv::kNone) {
    const std::string_view scheme = config.checkpoint == CheckpointKv::kFp8Scales ? "e4m3" : "nvfp4";
    return invalid(fmt::format(
        "an e5m2 cache does not go with a checkpoint whose cache scales are for {}; use {} or auto", scheme, scheme));
  }
  return {};
}

Status check_heads(int32_t num_q_heads, int32_t num_kv_heads) {
  if (num_q_heads < 1 || num_kv_heads < 1) {
    return invalid(
        fmt::format("{} query heads and {} KV heads: at least 1 of each is needed", num_q_heads, num_kv_heads));
  }
  if (num_q_heads % num_kv_heads != 0) {
    return invalid(
        fmt::format("{} query heads on {} KV heads: a whole number of query heads per KV head is needed; "
                    "check the head counts, or the tensor-parallel size that divided them",
                    num_q_heads, num_kv_heads));
  }
  return {};
}

Status check_sinks(const ModelAttentionConfig& config) {
  if (!config.num_sinks || *config.num_sinks == config.num_q_heads) return {};
  return invalid(
      fmt::format("{} attention sinks for {} query heads: one per query head is needed; shard the sink tensor "
                  "as the query heads are",
                  *config.num_sinks, config.num_q_heads));
}

Status check_conditioning(KeyConditioning conditioning, KvFormat k_format) {
  if (conditioning == KeyConditioning::kNone || info(k_format).quantised) return {};
  return invalid(fmt::format("conditioned keys (cond={}) need a quantised K format, not {}; use cond=none",
                             to_string(conditioning), to_string(k_format)));
}

Status check_edges(const ModelAttentionConfig& config, const KvLayout& layout) {
  const ExactEdges& edges = config.edges;
  if (edges.head < 0 || edges.tail < 0) {
    return invalid(
        fmt::format("exact edges {},{} must not be negative; use edges=none for no edges", edges.head, edges.tail));
  }
  const bool quantised = info(layout.k_format).quantised || info(layout.v_format).quantised;
  if (edges.enabled() && !quantised) {
    return invalid(fmt::format("exact edges {},{} need a quantised base format, not {}; use edges=none", edges.head,
                               edges.tail, to_string(layout.k_format)));
  }
  return check_conditioning(config.conditioning, layout.k_format);
}

Status check_context_parallel(const ContextParallel& parallel) {
  if (parallel.size < 1 || parallel.rank < 0 || parallel.rank >= parallel.size || parallel.interleave < 1) {
    return invalid(
        fmt::format("context-parallel rank {} of {} with interleave {}: ranks go from 0 to size - 1, and the "
                    "interleave is at least 1",
                    parallel.rank, parallel.size, parallel.interleave));
  }
  return {};
}

// Kernels take any interleave. Hosts allot pages for runs of keys, so a run must not straddle two pages.
Status check_interleave(const ContextParallel& parallel, int32_t page_size) {
  if (page_size % parallel.interleave == 0) return {};
  return invalid(fmt::format("context-parallel interleave {} does not divide the page size {}; choose a divisor",
                             parallel.interleave, page_size));
}

Status check_window_and_cap(int32_t window, float soft_cap) {
  if (window < 0) return invalid(fmt::format("window {} must not be negative; 0 means no window", window));
  if (!(soft_cap >= 0.0f) || std::isinf(soft_cap)) {
    return invalid(fmt::format("soft cap {} must be a finite number of at least 0; 0 means none", soft_cap));
  }
  return {};
}

Status check_mask(const ModelAttentionConfig& config) {
  if (config.max_query_len < 1) {
    return invalid(fmt::format("max_query_len {} must be at least 1", config.max_query_len));
  }
  if (config.draft_mask != DraftMask::kPacked) {
    if (config.mask_row_words != 0) {
      return invalid(fmt::format("mask rows of {} words need a packed draft mask; causal and full masks take none",
                                 config.mask_row_words));
    }
    if (config.row_positions) {
      return invalid(
          "a position per row needs a packed draft mask; causal and full masks derive positions from lengths");
    }
    return {};
  }
  if (const int32_t least = mask_words(config.max_query_len); config.mask_row_words < least) {
    return invalid(fmt::format("mask rows of {} words hold {} keys; {} words are needed for {} query rows",
                               config.mask_row_words, static_cast<int64_t>(config.mask_row_words) * 32, least,
                               config.max_query_len));
  }
  if (config.window > 0 && !config.row_positions) {
    return invalid(
        fmt::format("window {} with a packed draft mask needs a position per row, since rows of a tree share "
                    "positions; pass row positions",
                    config.window));
  }
  return {};
}

Status check_model(const ModelAttentionConfig& config) {
  KVANT_ASSIGN_OR_RETURN(const KvFormat k_format, resolve_format("K", config.k_format, config));
  KVANT_ASSIGN_OR_RETURN(const KvFormat v_format, resolve_format("V", config.v_format, config));
  const KvLayout layout{.k_format = k_format,
                        .v_format = v_format,
                        .head_dim_k = config.head_dim_k,
                        .head_dim_v = config.head_dim_v,
                        .num_kv_heads = config.num_kv_heads,
                        .page_size = config.page_size};
  KVANT_RETURN_IF_ERROR(check_kind(config, layout));
  KVANT_RETURN_IF_ERROR(check_checkpoint(config, layout));
  KVANT_RETURN_IF_ERROR(check_heads(config.num_q_heads, config.num_kv_heads));
  KVANT_RETURN_IF_ERROR(layout.validate());
  KVANT_RETURN_IF_ERROR(check_sinks(config));
  KVANT_RETURN_IF_ERROR(check_edges(config, layout));
  KVANT_RETURN_IF_ERROR(check_context_parallel(config.context_parallel));
  KVANT_RETURN_IF_ERROR(check_interleave(config.context_parallel, config.page_size));
  KVANT_RETURN_IF_ERROR(check_window_and_cap(config.window, config.soft_cap));
  return check_mask(config);
}

}  // namespace

Status validate_model_attention(const ModelAttentionConfig& config) {
  Status status = check_model(config);
  if (status.ok() || config.layer < 0) return status;
  return {status.code(), fmt::format("layer {}: {}", config.layer, status.message())};
}

Status validate_attention(const AttnDesc& desc, const AttnLimits& limits) {
  KVANT_RETURN_IF_ERROR(check_heads(desc.num_q_heads, desc.layout.num_kv_heads));
  KVANT_RETURN_IF_ERROR(desc.layout.validate());
  const bool quantised = info(desc.layout.k_format).quantised || info(desc.layout.v_format).quantised;
  if (desc.exact_pages && !quantised) {
    return invalid(fmt::format("exact pages need a quantised base format, not {}; put all tokens into base pages",
                               to_string(desc.layout.k_format)));
  }
  KVANT_RETURN_IF_ERROR(check_conditioning(desc.conditioning, desc.layout.k_format));
  KVANT_RETURN_IF_ERROR(check_context_parallel(desc.context_parallel));
  KVANT_RETURN_IF_ERROR(check_window_and_cap(desc.window, desc.soft_cap));
  if (!(desc.softmax_scale > 0.0f) || std::isinf(desc.softmax_scale)) {
    return invalid(fmt::format("softmax_scale {} must be a finite number above 0; 1 / sqrt(head_dim_k) is usual",
                               desc.softmax_scale));
  }
  if (limits.max_requests < 1 || limits.max_tokens < 1 || limits.max_query_len < 1 ||
      limits.max_pages_per_request < 1) {
    return invalid(
        fmt::format("limits of {} requests, {} tokens, {} rows and {} pages a request: each must be at least 1",
                    limits.max_requests, limits.max_tokens, limits.max_query_len, limits.max_pages_per_request));
  }
  return {};
}

}  // namespace kvant::attn
