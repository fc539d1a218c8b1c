#include "line_chart.h"

#include "html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tutti::examples {
namespace {

constexpr double chart_width = 440, chart_height = 240, left = 46, right = 12, top = 10,
                 bottom = 38, plot_width = chart_width - left - right,
                 plot_height = chart_height - top - bottom;

// Returns the multiples of 1, 2 or 5 times a power of ten in a range, about five of them.
std::vector<double> ticks(double low, double high) {
  const double power = std::pow(10, std::floor(std::log10((high - low) / 5)));
  const double part = (high - low) / 5 / power;
  const double step = power * (part > 5 ? 10 : part > 2 ? 5 : part > 1 ? 2 : 1);
  std::vector<double> result;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); ++i)
    result.push_back(i * step);
  return result;
}

// Returns a number for an axis: 20k in place of 20000.
std::string tick_text(double value) {
  if (std::abs(value) >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", std::abs(value) < 1e-12 ? 0.0 : value);
}

// The picture's coordinates of a chart's values.
struct Frame {
  const LineChart& chart;

  double x(double step) const { return left + plot_width * step / std::max(chart.last_step, 1.0); }
  double y(double value) const {
    const double share = (value - chart.low) / (chart.high - chart.low);
    return top + plot_height * (1 - std::clamp(share, 0.0, 1.0));
  }
};

std::string text(double x, double y, const char* anchor, const std::string& content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escape(content));
}

std::string straight_line(const char* style, double x1, double y1, double x2, double y2) {
  return fmt::format("<path class=\"{}\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", style, x1, y1, x2,
                     y2);
}

std::string axes(const Frame& frame) {
  const LineChart& chart = frame.chart;
  std::string out;
  for (const double v : ticks(chart.low, chart.high)) {
    out += straight_line("grid", left, frame.y(v), chart_width - right, frame.y(v));
    out += text(left - 7, frame.y(v) + 4, "end", tick_text(v));
  }
  for (const double s : ticks(0, std::max(chart.last_step, 5.0)))
    if (s <= chart.last_step)
      out += text(frame.x(s), chart_height - bottom + 17, "middle", tick_text(s));
  for (const double end : chart.epoch_ends)
    out += straight_line("epoch", frame.x(end), top, frame.x(end), chart_height - bottom);
  return out + text(left + plot_width / 2, chart_height - 4, "middle", "step");
}

bool is_finite(const Point& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

std::string polyline(const char* style, const Frame& frame, const std::vector<Point>& points) {
  std::string d;
  for (const Point& p : points)
    if (is_finite(p))
      d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", frame.x(p.x), frame.y(p.y));
  return d.empty() ? d : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", style, d);
}

std::string circles(const Frame& frame, const std::vector<Point>& points) {
  std::string out;
  for (const Point& p : points)
    if (is_finite(p))
      out += fmt::format("<circle class=\"test\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"/>\n",
                         frame.x(p.x), frame.y(p.y), points.size() > 40 ? 2.5 : 4.5);
  return out;
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  const Frame frame{chart};
  return fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                     chart_width, chart_height, escape(chart.title)) +
         axes(frame) + polyline("faint", frame, chart.faint) +
         polyline("train", frame, chart.line) + polyline("test-line", frame, chart.dots) +
         circles(frame, chart.dots) + "</svg>\n";
}

}  // namespace tutti::examples
