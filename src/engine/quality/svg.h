#pragma once

#include <array>
#include <string>
#include <string_view>

// What plots have in common.
namespace kvant::engine {

/// Colours of series, in order of use.
inline constexpr std::array<const char*, 8> kSvgColours = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad",
                                                           "#b9770e", "#16808a", "#7f4a2a", "#555555"};

/// Text for an element or an attribute; control characters become spaces.
std::string escape_svg(std::string_view text);

/// A round step that cuts [0, largest], which is above zero, into at most seven parts.
double svg_tick_step(double largest);

/// The opening tag and a white ground, sizes in pixels.
std::string begin_svg(double width, double height);

}  // namespace kvant::engine
