#include "kvant/attn/kv_spec.h"

#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace kvant::attn {
namespace {

constexpr ExactEdges kDefaultEdges{.head = 16, .tail = 32};
constexpr int32_t kMaxEdge = 1 << 20;
constexpr std::string_view kPlainSuffix = "-plain";

Status refuse(std::string_view spec, std::string_view reason) {
  return {StatusCode::kInvalidArgument, fmt::format("KV spec \"{}\": {}", spec, reason)};
}

std::string format_names() {
  std::string names;
  for (const KvFormatInfo& row : kKvFormats) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  return names + ", fp8 (= e4m3)";
}

/// Cuts `text` at the first `separator`; the rest stays in `text`.
std::string_view take_until(std::string_view& text, char separator) {
  const size_t at = text.find(separator);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return head;
}

bool has_nvfp4(const KvSpec& spec) { return spec.k_format == KvFormat::kNvfp4 || spec.v_format == KvFormat::kNvfp4; }

void set_defaults(KvSpec& spec) {
  if (!spec.quantised()) return;
  spec.edges = kDefaultEdges;
  if (!has_nvfp4(spec)) return;
  spec.policy = ScalePolicy::kSearch;
  if (info(spec.k_format).quantised) spec.conditioning = KeyConditioning::kFull;
}

Result<KvFormat> parse_format(std::string_view spec, std::string_view name) {
  if (const std::optional<KvFormat> format = parse_kv_format(name)) return *format;
  return failure(refuse(spec, fmt::format("unknown format \"{}\"; known are {}, and \"auto\"", name, format_names())));
}

/// `k=F/v=F`.
Status parse_two_formats(std::string_view text, std::string_view formats, KvSpec& spec) {
  std::string_view v = formats;
  const std::string_view k = take_until(v, '/');
  if (!k.starts_with("k=") || !v.starts_with("v=")) {
    return refuse(text, fmt::format("\"{}\" is not of the form k=FORMAT/v=FORMAT, such as k=e4m3/v=nvfp4", formats));
  }
  KVANT_ASSIGN_OR_RETURN(spec.k_format, parse_format(text, k.substr(2)));
  KVANT_ASSIGN_OR_RETURN(spec.v_format, parse_format(text, v.substr(2)));
  set_defaults(spec);
  return {};
}

Status parse_formats(std::string_view text, std::string_view formats, KvSpec& spec) {
  if (formats == "auto") {
    spec.automatic = true;
    return {};
  }
  if (formats.find('=') != std::string_view::npos) return parse_two_formats(text, formats, spec);
  const bool plain = formats.ends_with(kPlainSuffix);
  const std::string_view name = plain ? formats.substr(0, formats.size() - kPlainSuffix.size()) : formats;
  KVANT_ASSIGN_OR_RETURN(spec.k_format, parse_format(text, name));
  spec.v_format = spec.k_format;
  if (plain && !spec.quantised()) {
    return refuse(text, fmt::format("{} has no exact edges or conditioning to leave out; write \"{}\"", name, name));
  }
  if (!plain) set_defaults(spec);
  return {};
}

Status parse_policy(std::string_view text, std::string_view value, KvSpec& spec) {
  if (!has_nvfp4(spec)) return refuse(text, "policy chooses nvfp4 block scales and needs an nvfp4 plane; leave it out");
  for (const ScalePolicy policy : {ScalePolicy::kAmax, ScalePolicy::kFourOverSix, ScalePolicy::kSearch}) {
    if (value != to_string(policy)) continue;
    spec.policy = policy;
    return {};
  }
  return refuse(text, fmt::format("unknown policy \"{}\"; known are amax, four_over_six, search", value));
}

Status parse_conditioning(std::string_view text, std::string_view value, KvSpec& spec) {
  for (const KeyConditioning kind : {KeyConditioning::kNone, KeyConditioning::kMean, KeyConditioning::kFull}) {
    if (value != to_string(kind)) continue;
    if (kind != KeyConditioning::kNone && !info(spec.k_format).quantised) {
      return refuse(text, fmt::format("cond={} needs a quantised K format, not {}; use cond=none", value,
                                      to_string(spec.k_format)));
    }
    spec.conditioning = kind;
    return {};
  }
  return refuse(text, fmt::format("unknown conditioning \"{}\"; known are none, mean, full", value));
}

std::optional<int32_t> parse_edge(std::string_view digits) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value > kMaxEdge)
    return std::nullopt;
  return value;
}

Status parse_edges(std::string_view text, std::string_view value, KvSpec& spec) {
  ExactEdges edges;
  if (value != "none") {
    std::string_view rest = value;
    const std::optional<int32_t> head = parse_edge(take_until(rest, ','));
    const std::optional<int32_t> tail = parse_edge(rest);
    if (!head || !tail) {
      return refuse(text,
                    fmt::format("edges \"{}\" must be HEAD,TAIL in tokens (0 to {} each) or none, such as edges=16,32",
                                value, kMaxEdge));
    }
    edges = {*head, *tail};
  }
  if (edges.enabled() && !spec.quantised()) {
    return refuse(text, fmt::format("edges={} needs a quantised format: {} is exact already; use edges=none", value,
                                    to_string(spec.k_format)));
  }
  spec.edges = edges;
  return {};
}

Status parse_option(std::string_view text, std::string_view option, KvSpec& spec) {
  std::string_view value = option;
  const std::string_view key = take_until(value, '=');
  if (key == "policy") return parse_policy(text, value, spec);
  if (key == "cond") return parse_conditioning(text, value, spec);
  if (key == "edges") return parse_edges(text, value, spec);
  return refuse(text, fmt::format("unknown option \"{}\"; known are policy=, cond=, edges=", key));
}

}  // namespace

Result<KvSpec> parse_kv_spec(std::string_view text) {
  KvSpec spec;
  spec.text = text;
  std::string_view rest = text;
  KVANT_FAIL_IF_ERROR(parse_formats(text, take_until(rest, ':'), spec));
  if (spec.automatic && text != "auto")
    return failure(refuse(text, "auto takes no options; name a format to set them"));
  if (text.ends_with(':')) return failure(refuse(text, "an option is missing after the last \":\""));
  std::string seen;
  while (!rest.empty()) {
    const std::string_view option = take_until(rest, ':');
    const std::string key = fmt::format(":{}=", option.substr(0, option.find('=')));
    if (seen.find(key) != std::string::npos)
      return failure(refuse(text, fmt::format("option \"{}\" is given twice", option)));
    seen += key;
    KVANT_FAIL_IF_ERROR(parse_option(text, option, spec));
  }
  return spec;
}

KvSpec resolve_kv_spec(const KvSpec& spec, DType model_dtype) {
  KvSpec resolved = spec;
  if (!spec.automatic) return resolved;
  resolved.automatic = false;
  resolved.k_format = resolved.v_format = model_dtype == DType::kF16 ? KvFormat::kF16 : KvFormat::kBf16;
  return resolved;
}

std::string KvSpec::to_string() const {
  if (automatic) return "auto";
  std::string out = k_format == v_format
                        ? std::string(attn::to_string(k_format))
                        : fmt::format("k={}/v={}", attn::to_string(k_format), attn::to_string(v_format));
  if (!quantised()) return out;
  if (has_nvfp4(*this)) out += fmt::format(":policy={}", attn::to_string(policy));
  out += fmt::format(":cond={}", attn::to_string(conditioning));
  return out + (edges.enabled() ? fmt::format(":edges={},{}", edges.head, edges.tail) : ":edges=none");
}

}  // namespace kvant::attn
