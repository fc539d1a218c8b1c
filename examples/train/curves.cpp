// curves_svg(): the picture of a run, in two panels. Training is a line, test results are dots.
#include "run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace tutti::examples {
namespace {

constexpr double width = 460, height = 300, left = 56, top = 40, plot_width = 380,
                 plot_height = 210;
constexpr const char* train_color = "#1f6fb4";
constexpr const char* test_color = "#d1495b";

struct Panel {
  std::string title;
  double low, high;  // the ends of the vertical axis
  std::function<double(const Metrics&)> train;
  std::function<std::optional<double>(const Metrics&)> test;
};

// Returns the distance between ticks: 1, 2 or 5 times a power of ten, about a fifth of the range.
double tick_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 5)));
  const double part = range / 5 / power;
  return power * (part > 5 ? 10 : part > 2 ? 5 : part > 1 ? 2 : 1);
}

std::string text(double x, double y, const std::string& anchor, const std::string& content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     content);
}

std::string draw(const Panel& panel, const std::vector<Metrics>& rows, double offset) {
  const double last = static_cast<double>(rows.empty() ? 1 : rows.back().step);
  const auto x_of = [&](double step) { return offset + left + plot_width * step / last; };
  const auto y_of = [&](double value) {
    return top +
           plot_height * (1 - std::clamp((value - panel.low) / (panel.high - panel.low), 0.0, 1.0));
  };
  std::string out = text(offset + left + plot_width / 2, top - 14, "middle", panel.title);
  const double y_tick = tick_of(panel.high - panel.low), x_tick = std::max(1.0, tick_of(last));
  for (double v = std::ceil(panel.low / y_tick) * y_tick; v <= panel.high + 1e-9; v += y_tick) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n",
        offset + left, offset + left + plot_width, y_of(v), y_of(v));
    out += text(offset + left - 6, y_of(v) + 4, "end", fmt::format("{:.4g}", v));
  }
  for (double s = 0; s <= last + 1e-9; s += x_tick)
    out += text(x_of(s), top + plot_height + 18, "middle", fmt::format("{:.0f}", s));
  out += text(offset + left + plot_width / 2, top + plot_height + 36, "middle", "step");
  std::string points, dots;
  for (const Metrics& row : rows) {
    const double x = x_of(static_cast<double>(row.step));
    const double train = panel.train(row);
    if (std::isfinite(train)) points += fmt::format("{:.1f},{:.1f} ", x, y_of(train));
    if (const auto value = panel.test(row); value && std::isfinite(*value)) {
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x,
                          y_of(*value), test_color);
      dots += text(x - 7, y_of(*value) - 7, "end", fmt::format("{:.4f}", *value));
    }
  }
  out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                     points, train_color);
  return out + dots;
}

}  // namespace

std::string curves_svg(const std::vector<Metrics>& rows) {
  double highest = 0.1, worst = 1;
  for (const Metrics& row : rows) {
    if (std::isfinite(row.train_loss)) highest = std::max(highest, row.train_loss);
    worst = std::min({worst, row.train_accuracy, row.test_accuracy.value_or(1)});
  }
  const Panel loss{"loss", 0, highest * 1.05, [](const Metrics& m) { return m.train_loss; },
                   [](const Metrics& m) { return m.test_loss; }};
  const Panel accuracy{"accuracy", std::floor(worst * 10) / 10 - (worst >= 1 ? 0.1 : 0), 1,
                       [](const Metrics& m) { return m.train_accuracy; },
                       [](const Metrics& m) { return m.test_accuracy; }};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 "
      "0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" "
      "height=\"100%\" fill=\"white\"/>\n",
      2 * width, height);
  svg += draw(loss, rows, 0) + draw(accuracy, rows, width);
  svg += fmt::format(
             "<g transform=\"translate({:.0f},16)\"><rect width=\"10\" height=\"3\" y=\"-4\" "
             "fill=\"{}\"/>",
             left, train_color) +
         text(16, 0, "start", "train") +
         fmt::format("<circle cx=\"65\" cy=\"-3\" r=\"4\" fill=\"{}\"/>", test_color) +
         text(74, 0, "start", "test") + "</g>\n</svg>\n";
  return svg;
}

}  // namespace tutti::examples
