#include "line_chart.h"
#include "sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace tutti::examples {
namespace {

constexpr std::size_t most_points = 400, most_epoch_lines = 30;

using Value = std::function<double(const Metrics&)>;
using Points = std::vector<Point>;

// What one chart shows of the rows.
struct Curve {
  std::string title;
  Value train;
  std::function<std::optional<double>(const Metrics&)> test = {};
  std::string format;  // of the last row's value, as fmt wants it
  bool is_noisy = true;
};

// Returns the values of the rows. Where there are more than a picture has room for, each point is
// the mean of neighbours.
Points points_of(const std::vector<Metrics>& rows, const Value& value) {
  const std::size_t group = (rows.size() + most_points - 1) / most_points;
  Points points;
  for (std::size_t i = 0; i < rows.size(); i += group) {
    const std::size_t end = std::min(i + group, rows.size());
    double sum = 0;
    for (std::size_t k = i; k < end; ++k) sum += value(rows[k]);
    points.push_back({static_cast<double>(rows[end - 1].step), sum / static_cast<double>(end - i)});
  }
  return points;
}

// Returns the mean of the neighbours of each point, of which the nearer ones count more. Unlike an
// exponential average it does not lag behind.
Points smooth(const Points& points) {
  const auto n = static_cast<std::ptrdiff_t>(points.size()), reach = std::max(n / 30, 2L);
  Points result;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    double sum = 0, weights = 0;
    for (std::ptrdiff_t k = std::max(i - reach, 0L); k <= std::min(i + reach, n - 1); ++k) {
      const Point& neighbour = points[static_cast<std::size_t>(k)];
      if (!std::isfinite(neighbour.y)) continue;
      const auto weight = static_cast<double>(reach + 1 - std::abs(i - k));
      sum += weight * neighbour.y;
      weights += weight;
    }
    if (weights > 0) result.push_back({points[static_cast<std::size_t>(i)].x, sum / weights});
  }
  return result;
}

Points test_points(const std::vector<Metrics>& rows, const Curve& curve) {
  Points points;
  for (const Metrics& row : rows)
    if (const auto value = curve.test ? curve.test(row) : std::nullopt)
      points.push_back({static_cast<double>(row.step), *value});
  return points;
}

std::vector<double> epoch_ends(const RunReport& report) {
  std::vector<double> ends;
  for (const Metrics& row : report.rows)
    if (row.test_loss) ends.push_back(static_cast<double>(row.step));
  return ends.size() <= most_epoch_lines ? ends : std::vector<double>();
}

double highest(const LineChart& chart) {
  double most = 0;
  for (const Points* points : {&chart.faint, &chart.line, &chart.dots})
    for (const Point& p : *points)
      if (std::isfinite(p.y)) most = std::max(most, p.y);
  return most > 0 ? std::clamp(most * 1.05, 1e-100, 1e100) : 1;
}

std::string caption(const Curve& curve, const RunReport& report, const LineChart& chart) {
  const auto text = [&](double value) { return fmt::format(fmt::runtime(curve.format), value); };
  std::string out = fmt::format("<figcaption><b>{}</b><span class=\"key\">{}{}</span>", curve.title,
                                curve.test ? "train " : "", text(curve.train(report.rows.back())));
  if (!chart.dots.empty())
    out += fmt::format("<span class=\"key test\">test {}</span>", text(chart.dots.back().y));
  return out + "</figcaption>\n";
}

std::string figure(const RunReport& report, const Curve& curve, bool is_share) {
  const auto& rows = report.rows;
  LineChart chart{.title = curve.title + " over the steps",
                  .last_step = static_cast<double>(rows.back().step),
                  .epoch_ends = epoch_ends(report),
                  .line = points_of(rows, curve.train),
                  .dots = test_points(rows, curve)};
  if (curve.is_noisy && chart.line.size() > 25) {
    chart.faint = chart.line;
    chart.line = smooth(chart.line);
  }
  chart.high = highest(chart);
  if (is_share) {
    double worst = 1;
    for (const Points* points : {&chart.faint, &chart.line, &chart.dots})
      for (const Point& p : *points) worst = std::min(worst, std::isfinite(p.y) ? p.y : 1.0);
    chart.low = std::floor(worst * 10) / 10 - (worst >= 1 ? 0.1 : 0);
    chart.high = 1;
  }
  return "<figure>\n" + caption(curve, report, chart) + line_chart(chart) + "</figure>\n";
}

}  // namespace

std::string curves_section(const RunReport& report) {
  if (report.rows.empty()) return {};
  const Curve loss{.title = "Loss",
                   .train = [](const Metrics& m) { return m.train_loss; },
                   .test = [](const Metrics& m) { return m.test_loss; },
                   .format = "{:.4f}"};
  const Curve accuracy{.title = "Accuracy",
                       .train = [](const Metrics& m) { return m.train_accuracy; },
                       .test = [](const Metrics& m) { return m.test_accuracy; },
                       .format = "{:.4f}"};
  const Curve rate{.title = "Learning rate",
                   .train = [](const Metrics& m) { return m.learning_rate; },
                   .format = "{:.3g}",
                   .is_noisy = false};
  const Curve speed{.title = "Training images per second",
                    .train = [](const Metrics& m) { return m.images_per_second; },
                    .format = "{:.0f}"};
  return section("curves", "Curves",
                 "<p class=\"note\">Faint lines are the rows of metrics.jsonl, solid ones their "
                 "moving mean. Dotted lines stand where an epoch ends.</p>\n"
                 "<div class=\"charts\">\n" +
                     figure(report, loss, false) + figure(report, accuracy, true) +
                     figure(report, rate, false) + figure(report, speed, false) + "</div>\n");
}

}  // namespace tutti::examples
