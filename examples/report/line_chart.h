// line_chart(): curves over the steps of a run, as an SVG picture whose colours are those of the
// page.
#pragma once

#include <string>
#include <vector>

namespace tutti::examples {

struct Point {
  double x = 0, y = 0;
};

/// The curves of a chart: a line for training, a faint line behind it, and dots for the test. Any
/// of them may be empty; points that are not finite are left out.
struct LineChart {
  std::string title;         ///< For those who cannot see the picture.
  double low = 0, high = 1;  ///< The ends of the vertical axis: low < high, neither of them huge.
  double last_step = 1;      ///< The end of the horizontal axis, which begins at 0.
  std::vector<double> epoch_ends = {};  ///< Steps at which a dotted line stands.
  std::vector<Point> faint = {}, line = {}, dots = {};
};

std::string line_chart(const LineChart& chart);

}  // namespace tutti::examples
