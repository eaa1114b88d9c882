#include "bar_chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "engine/quality/svg.h"

namespace kvant::cli {
namespace {

constexpr double kTop = 64, kMargin = 20, kPlotWidth = 460, kBottom = 56;
constexpr double kBarHeight = 16, kBarPitch = 21, kGroupGap = 12, kTitleLine = 18, kCharWidth = 6.7;

double text_width(size_t characters) { return kCharWidth * static_cast<double>(characters); }

double length_of(const Bar& bar) {
  double length = 0.0;
  for (const double part : bar.parts)
    if (std::isfinite(part)) length += std::max(part, 0.0);
  return length;
}

class Plot {
 public:
  explicit Plot(const BarChart& chart) : chart_(chart) {
    size_t label = 0, note = 0;
    for (const BarGroup& group : chart.groups) {
      height_ += kGroupGap + kTitleLine + kBarPitch * static_cast<double>(group.bars.size());
      for (const Bar& bar : group.bars) {
        label = std::max(label, bar.label.size());
        note = std::max(note, bar.note.size());
        longest_ = std::max(longest_, length_of(bar));
      }
    }
    if (longest_ == 0.0) longest_ = 1.0;
    left_ = kMargin + text_width(label) + 10;
    width_ = std::max(left_ + kPlotWidth + text_width(note) + 16, left_ + 1.1 * text_width(chart.title.size()));
  }

  std::string draw() {
    out_ = engine::begin_svg(width_, kTop + height_ + kBottom);
    append("<text x=\"{}\" y=\"24\" font-size=\"13\" font-weight=\"bold\">{}</text>\n", kMargin,
           engine::escape_svg(chart_.title));
    draw_legend();
    draw_axis();
    double y = kTop;
    for (const BarGroup& group : chart_.groups) {
      y += kGroupGap + kTitleLine;
      append("<text x=\"{}\" y=\"{:.1f}\" font-weight=\"bold\">{}</text>\n", kMargin, y - 5,
             engine::escape_svg(group.title));
      for (const Bar& bar : group.bars) {
        draw_bar(bar, y);
        y += kBarPitch;
      }
    }
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  static const char* colour(size_t part) { return engine::kSvgColours[part % engine::kSvgColours.size()]; }
  double pixels(double length) const { return kPlotWidth * length / longest_; }

  void draw_legend() {
    if (chart_.parts.size() < 2) return;
    double x = kMargin;
    for (size_t i = 0; i < chart_.parts.size(); ++i) {
      append("<rect x=\"{:.1f}\" y=\"38\" width=\"11\" height=\"11\" fill=\"{}\"/>\n", x, colour(i));
      append("<text x=\"{:.1f}\" y=\"48\">{}</text>\n", x + 16, engine::escape_svg(chart_.parts[i]));
      x += 34 + text_width(chart_.parts[i].size());
    }
  }

  void draw_axis() {
    const double bottom = kTop + height_, step = engine::svg_tick_step(longest_);
    for (int i = 0; i * step <= longest_; ++i) {
      const double x = left_ + pixels(i * step);
      append("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#dddddd\"/>\n", x, kTop, bottom + 5);
      append("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n", x, bottom + 19, i * step);
    }
    append("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", left_ + kPlotWidth / 2, bottom + 40,
           engine::escape_svg(chart_.unit));
  }

  void draw_bar(const Bar& bar, double y) {
    append("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left_ - 8, y + 12,
           engine::escape_svg(bar.label));
    double x = left_;
    for (size_t i = 0; i < bar.parts.size(); ++i) {
      if (!(bar.parts[i] > 0.0) || !std::isfinite(bar.parts[i])) continue;
      const double width = pixels(bar.parts[i]);
      append("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n", x, y, width, kBarHeight,
             colour(i));
      x += width;
    }
    append("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 6, y + 12, engine::escape_svg(bar.note));
  }

  const BarChart& chart_;
  double height_ = 0, width_ = 0, left_ = 0, longest_ = 0;
  std::string out_;
};

}  // namespace

std::string to_svg(const BarChart& chart) { return Plot(chart).draw(); }

}  // namespace kvant::cli
