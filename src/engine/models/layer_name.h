#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace kvant::engine {

/// The layer in a name such as "model.layers.12.self_attn", and what follows its number.
struct LayerName {
  int32_t layer = 0;
  std::string_view rest;  ///< ".self_attn"
};

inline std::optional<LayerName> parse_layer_name(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;
  LayerName out;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + at + kLayers.size(), last, out.layer);
  if (error != std::errc() || out.layer < 0) return std::nullopt;
  out.rest = name.substr(static_cast<size_t>(end - name.data()));
  return out;
}

}  // namespace kvant::engine
