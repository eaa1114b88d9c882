#include "engine/quality/svg.h"

#include <cmath>

#include <fmt/format.h>

namespace kvant::engine {

std::string escape_svg(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  return out;
}

double svg_tick_step(double largest) {
  const double power = std::pow(10.0, std::floor(std::log10(largest)));
  for (const double factor : {0.1, 0.2, 0.25, 0.5})
    if (largest / (factor * power) <= 7.0) return factor * power;
  return power;
}

std::string begin_svg(double width, double height) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
      R"(font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">)"
      "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
}

}  // namespace kvant::engine
