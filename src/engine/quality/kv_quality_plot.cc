#include "engine/quality/kv_quality.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "engine/quality/svg.h"

namespace kvant::engine {
namespace {

constexpr double kLeft = 80, kTop = 56, kPlotWidth = 420, kBottom = 60;
constexpr double kLabelGap = 40, kLabelLine = 18, kCharWidth = 6.7;
constexpr double kSmallestPlotHeight = 320;
/// Decades that hold every positive divergence. Zero and less (rounding) is drawn on the lower border.
struct LogAxis {
  int first = -4, last = -1;

  explicit LogAxis(const std::vector<KvQualityRow>& rows) {
    double smallest = HUGE_VAL, largest = 0.0;
    for (const KvQualityRow& row : rows)
      if (std::isfinite(row.kld_mean) && row.kld_mean > 1e-9) {
        smallest = std::min(smallest, row.kld_mean);
        largest = std::max(largest, row.kld_mean);
      }
    if (largest == 0.0) return;
    first = static_cast<int>(std::floor(std::log10(smallest)));
    last = std::max(first + 1, static_cast<int>(std::ceil(std::log10(largest))));
  }

  /// 0 at the lower border, 1 at the upper.
  double place(double value) const {
    if (!(value > 0.0)) return 0.0;
    return std::clamp((std::log10(value) - first) / (last - first), 0.0, 1.0);
  }
};

/// Moves label positions down, then up, until neighbours in `order` are a line apart and none leaves [top, bottom].
std::vector<double> spread_labels(std::vector<double> y, const std::vector<size_t>& order, double top, double bottom) {
  double limit = top;
  for (const size_t i : order) {
    y[i] = std::max(y[i], limit);
    limit = y[i] + kLabelLine;
  }
  limit = bottom;
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    y[*i] = std::min(y[*i], limit);
    limit = y[*i] - kLabelLine;
  }
  return y;
}

class Plot {
 public:
  explicit Plot(const KvQualityReport& report) : report_(report), axis_(report.rows) {
    height_ = std::max(kSmallestPlotHeight, kLabelLine * static_cast<double>(report.rows.size()));
    size_t longest = 0;
    for (const KvQualityRow& row : report.rows) {
      largest_x_ = std::max(largest_x_, row.bytes_per_token);
      longest = std::max(longest, label(row).size());
    }
    largest_x_ = std::max(largest_x_, report.baseline_bytes_per_token) * 1.05;
    width_ = kLeft + kPlotWidth + kLabelGap + kCharWidth * static_cast<double>(longest) + 20;
    // The title must fit as well.
    width_ = std::max(width_, kLeft + kCharWidth * 1.1 * static_cast<double>(title().size()));
  }

  std::string draw() {
    out_ = begin_svg(width_, kTop + height_ + kBottom);
    append("<text x=\"{}\" y=\"24\" font-size=\"13\" font-weight=\"bold\">{}</text>\n", kLeft, escape_svg(title()));
    append(
        "<text x=\"{}\" y=\"42\" fill=\"#555555\">mean KL divergence from the f16 cache, {} scored tokens at context "
        "{}</text>\n",
        kLeft, report_.scored_tokens, report_.context);
    draw_axes();
    draw_points();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  static std::string label(const KvQualityRow& row) { return fmt::format("{}  {:.2g}", row.kv, row.kld_mean); }
  std::string title() const { return fmt::format("KV cache quality: {}", report_.model); }
  double x(double bytes) const { return kLeft + kPlotWidth * bytes / largest_x_; }
  double y(double divergence) const { return kTop + height_ * (1.0 - axis_.place(divergence)); }

  void draw_axes() {
    for (int decade = axis_.first; decade <= axis_.last; ++decade) {
      const double at = y(std::pow(10.0, decade));
      append("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n", kLeft, at,
             kLeft + kPlotWidth, at);
      append("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", kLeft - 8, at + 4,
             std::pow(10.0, decade));
    }
    const double bottom = kTop + height_;
    const double step = svg_tick_step(largest_x_);
    for (int i = 0; i * step <= largest_x_; ++i) {
      append("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#333333\"/>\n", x(i * step), bottom,
             bottom + 5);
      append("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n", x(i * step), bottom + 19, i * step);
    }
    append("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#333333\"/>\n", kLeft, kTop,
           kPlotWidth, height_);
    const double baseline = x(report_.baseline_bytes_per_token);
    append("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#999999\" stroke-dasharray=\"4 3\"/>\n",
           baseline, kTop, bottom);
    append("<text x=\"{:.1f}\" y=\"{}\" fill=\"#777777\" text-anchor=\"end\">f16</text>\n", baseline - 4, kTop + 14);
    append("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">cache bytes per token, all layers, base format</text>\n",
           kLeft + kPlotWidth / 2, bottom + 42);
    append("<text transform=\"translate(22 {:.1f}) rotate(-90)\" text-anchor=\"middle\">mean KLD (nats)</text>\n",
           kTop + height_ / 2);
  }

  /// Labels stand in a column of their own, each tied to its point: encodings of one size share an x, so labels beside
  /// the points would run into each other.
  void draw_points() {
    const std::vector<KvQualityRow>& rows = report_.rows;
    std::vector<size_t> order(rows.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return y(rows[a].kld_mean) < y(rows[b].kld_mean); });
    std::vector<double> wanted;
    for (const KvQualityRow& row : rows) wanted.push_back(y(row.kld_mean));
    const std::vector<double> placed = spread_labels(std::move(wanted), order, kTop + 6, kTop + height_ - 6);
    const double label_x = kLeft + kPlotWidth + kLabelGap;
    for (size_t i = 0; i < rows.size(); ++i) {
      const char* colour = kSvgColours[i % kSvgColours.size()];
      const double px = x(rows[i].bytes_per_token), py = y(rows[i].kld_mean);
      append(
          "<polyline points=\"{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}\" fill=\"none\" stroke=\"{}\" "
          "stroke-opacity=\"0.45\"/>\n",
          px, py, label_x - kLabelGap + 6, py, label_x - 5, placed[i], colour);
      append("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"{}\"/>\n", px, py, colour);
      append("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n", label_x, placed[i] + 4, colour,
             escape_svg(label(rows[i])));
    }
  }

  const KvQualityReport& report_;
  LogAxis axis_;
  double height_ = 0, width_ = 0, largest_x_ = 1;
  std::string out_;
};

}  // namespace

std::string to_svg(const KvQualityReport& report) { return Plot(report).draw(); }

}  // namespace kvant::engine
