#pragma once

#include <string>
#include <vector>

namespace kvant::cli {

/// A bar from left to right, made of parts.
struct Bar {
  std::string label;          ///< Left of it.
  std::vector<double> parts;  ///< Lengths, in the order of BarChart::parts; what is not above zero is not drawn.
  std::string note;           ///< Right of it.
};

struct BarGroup {
  std::string title;
  std::vector<Bar> bars;
};

struct BarChart {
  std::string title;
  std::string unit;                ///< Under the axis.
  std::vector<std::string> parts;  ///< The legend; with one part none is drawn.
  std::vector<BarGroup> groups;
};

std::string to_svg(const BarChart& chart);

}  // namespace kvant::cli
