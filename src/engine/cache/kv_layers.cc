#include "engine/cache/kv_layers.h"

#include <charconv>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "engine/loader/printable.h"

namespace kvant::engine {
namespace {

struct Range {
  int32_t first = 0;
  int32_t last = 0;
};

std::string_view take_until(std::string_view& rest, char end) {
  const size_t at = rest.find(end);
  const std::string_view piece = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return piece;
}

std::optional<int32_t> parse_number(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Result<Range> parse_range(std::string_view text, int32_t num_layers) {
  if (text == "*") return Range{0, num_layers - 1};
  const size_t dash = text.find('-');
  const std::optional<int32_t> first = parse_number(text.substr(0, dash));
  const std::optional<int32_t> last = dash == std::string_view::npos ? first : parse_number(text.substr(dash + 1));
  if (!first || !last || *first > *last) {
    return failure(
        StatusCode::kInvalidArgument,
        fmt::format("--kv-layers: '{}' is no layer; a number, a range like 4-7 or * is needed", printable(text)));
  }
  if (*last >= num_layers) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("--kv-layers: there is no layer {}; the model has 0 to {}", *last, num_layers - 1));
  }
  return Range{*first, *last};
}

}  // namespace

Result<std::vector<std::optional<attn::KvSpec>>> parse_kv_layers(std::string_view text, int32_t num_layers) {
  std::vector<std::optional<attn::KvSpec>> specs(static_cast<size_t>(num_layers));
  while (!text.empty()) {
    std::string_view rule = take_until(text, ';');
    if (rule.empty()) continue;
    if (rule.find('=') == std::string_view::npos) {
      return failure(StatusCode::kInvalidArgument,
                     fmt::format("--kv-layers: '{}' is no rule; LAYERS=SPEC is needed, such as \"0,27=bf16;*=nvfp4\"",
                                 printable(rule)));
    }
    std::string_view layers = take_until(rule, '=');
    KVANT_ASSIGN_OR_FAIL(const attn::KvSpec spec, attn::parse_kv_spec(rule));
    if (spec.automatic)
      return failure(StatusCode::kInvalidArgument, "--kv-layers: auto is a choice for all layers; name a format");
    do {
      KVANT_ASSIGN_OR_FAIL(const Range range, parse_range(take_until(layers, ','), num_layers));
      for (int32_t layer = range.first; layer <= range.last; ++layer) {
        std::optional<attn::KvSpec>& slot = specs[static_cast<size_t>(layer)];
        if (!slot) slot = spec;
      }
    } while (!layers.empty());
  }
  return specs;
}

}  // namespace kvant::engine
