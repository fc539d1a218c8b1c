#include "html.h"
#include "sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tutti::examples {
namespace {

// A picture has room for numbers in its cells, or for cells at all, up to so many classes.
constexpr std::int64_t most_with_numbers = 12, most_in_picture = 60;
constexpr std::size_t most_rows = 10, most_label_characters = 14;

struct Cell {
  std::int64_t label, predicted, count;
  double share;  // of the samples of class `label`
};

Cell cell_of(const TestDetails& test, std::int64_t label, std::int64_t predicted) {
  const std::int64_t count = test.count(label, predicted);
  const auto samples = test.samples[static_cast<std::size_t>(label)];
  return {label, predicted, count,
          samples > 0 ? static_cast<double>(count) / static_cast<double>(samples) : 0};
}

// Returns the share of the samples of a class that was recognised; 0 where it has none.
double recognised_share(const TestDetails& test, std::int64_t label) {
  const auto i = static_cast<std::size_t>(label);
  return static_cast<double>(test.correct[i]) /
         static_cast<double>(std::max<std::int64_t>(test.samples[i], 1));
}

// ---- the picture

// The measures of the picture, in its own units.
struct Layout {
  std::int64_t classes;
  double cell, left, top, font;

  static Layout of(const RunReport& report) {
    const std::int64_t n = report.test.classes;
    std::size_t longest = 1;
    for (std::int64_t c = 0; c < n; ++c)
      longest =
          std::max(longest, std::min(most_label_characters,
                                     c < static_cast<std::int64_t>(report.class_names.size())
                                         ? report.class_names[static_cast<std::size_t>(c)].size()
                                         : std::to_string(c).size()));
    const double cell = n <= most_with_numbers ? 44 : 528.0 / static_cast<double>(n);
    const double font = std::min(12.0, cell * 0.95);
    const double label = 0.6 * font * static_cast<double>(longest);
    return {n, cell, label + 30, label * 0.75 + 34, font};
  }
  double side() const { return cell * static_cast<double>(classes); }
  bool has_numbers() const { return classes <= most_with_numbers; }
  double width() const { return left + side() + (has_numbers() ? 60 : 24); }
};

std::string labels(const RunReport& report, const Layout& at) {
  std::string out;
  for (std::int64_t c = 0; c < at.classes; ++c) {
    const double middle = (static_cast<double>(c) + 0.5) * at.cell;
    const std::string name = class_name(report, c, most_label_characters);
    out += fmt::format(
        "<text class=\"axis\" style=\"font-size:{:.1f}px\" x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{}</text>\n",
        at.font, at.left - 6, at.top + middle + at.font * 0.35, name);
    out += fmt::format(
        "<text class=\"axis\" style=\"font-size:{:.1f}px\" transform=\"translate({:.1f} {:.1f}) "
        "rotate(-45)\">{}</text>\n",
        at.font, at.left + middle + at.font * 0.2, at.top - 6, name);
  }
  out += fmt::format(
      "<text class=\"axis\" x=\"{:.1f}\" y=\"12\" text-anchor=\"middle\">"
      "what the network says</text>\n",
      at.left + at.side() / 2);
  for (std::int64_t c = 0; at.has_numbers() && c < at.classes; ++c)
    out += fmt::format("<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                       at.left + at.side() + 8,
                       at.top + (static_cast<double>(c) + 0.5) * at.cell + 4,
                       percent(recognised_share(report.test, c)));
  return out + fmt::format(
                   "<text class=\"axis\" transform=\"translate(12 {:.1f}) rotate(-90)\" "
                   "text-anchor=\"middle\">the true class</text>\n",
                   at.top + at.side() / 2);
}

std::string draw(const RunReport& report, const Layout& at, const Cell& cell) {
  const double x = at.left + static_cast<double>(cell.predicted) * at.cell,
               y = at.top + static_cast<double>(cell.label) * at.cell;
  const double gap = at.cell > 20 ? 2 : 0.5, size = at.cell - gap, round = at.cell > 20 ? 4 : 1;
  const auto square = [&](const char* kind, double opacity, const std::string& inside) {
    return fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "rx=\"{}\" fill-opacity=\"{:.3f}\">{}</rect>\n",
        kind, x, y, size, size, round, opacity, inside);
  };
  if (cell.count == 0) return square("cell", 1, "");
  // Rare mistakes would be invisible if the colour were proportional to the share.
  const double opacity = 0.06 + 0.94 * std::sqrt(cell.share);
  const std::string hint = fmt::format("<title>{}: {} of {} taken for {}</title>",
                                       class_name(report, cell.label), cell.count,
                                       report.test.samples[static_cast<std::size_t>(cell.label)],
                                       class_name(report, cell.predicted));
  std::string out = square(cell.label == cell.predicted ? "right" : "wrong", opacity, hint);
  if (at.has_numbers())
    out += fmt::format("<text{} x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                       opacity > 0.6 ? " class=\"on\"" : "", x + size / 2, y + size / 2 + 4.5,
                       cell.count);
  return out;
}

std::string picture(const RunReport& report) {
  const Layout at = Layout::of(report);
  std::string out = fmt::format(
      "<figure class=\"scroll\"><svg class=\"matrix\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "style=\"min-width:{2:.0f}px\" role=\"img\" aria-label=\"confusion matrix\">\n",
      at.width(), at.top + at.side(), at.has_numbers() ? 420.0 : 300.0);
  out += labels(report, at);
  for (std::int64_t r = 0; r < at.classes; ++r)
    for (std::int64_t c = 0; c < at.classes; ++c)
      out += draw(report, at, cell_of(report.test, r, c));
  return out + "</svg></figure>\n";
}

// ---- the tables

std::string bar(double share) {
  return fmt::format("<span class=\"bar\"><i style=\"width:{:.1f}%\"></i></span>", 100 * share);
}

std::string table(const std::string& id, const std::string& heading, const std::string& columns,
                  const std::string& rows) {
  return fmt::format(
      "<div id=\"{}\"><h3>{}</h3>\n<table><thead><tr>{}</tr></thead><tbody>\n"
      "{}</tbody></table></div>\n",
      id, heading, columns, rows);
}

std::string worst_pairs(const RunReport& report) {
  const TestDetails& test = report.test;
  std::vector<Cell> cells;
  for (std::int64_t r = 0; r < test.classes; ++r)
    for (std::int64_t c = 0; c < test.classes; ++c)
      if (r != c && test.count(r, c) > 0) cells.push_back(cell_of(test, r, c));
  const std::size_t n = std::min(cells.size(), most_rows);
  std::partial_sort(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(n), cells.end(),
                    [](const Cell& a, const Cell& b) {
                      return std::tuple(-a.count, -a.share, a.label, a.predicted) <
                             std::tuple(-b.count, -b.share, b.label, b.predicted);
                    });
  std::string rows;
  for (std::size_t i = 0; i < n; ++i)
    rows += fmt::format(
        "<tr><th>{}</th><td>{}</td><td class=\"number\">{}</td>"
        "<td class=\"number\">{}{}</td></tr>\n",
        class_name(report, cells[i].label), class_name(report, cells[i].predicted), cells[i].count,
        percent(cells[i].share), bar(cells[i].share));
  if (rows.empty()) return "<p>Every test image was recognised.</p>\n";
  return table("worst-pairs", "What is confused most",
               "<th>True class</th><th>taken for</th><th class=\"number\">Images</th>"
               "<th class=\"number\">of the class</th>",
               rows);
}

std::string worst_classes(const RunReport& report) {
  const TestDetails& test = report.test;
  std::vector<std::int64_t> order;
  for (std::int64_t c = 0; c < test.classes; ++c)
    if (test.samples[static_cast<std::size_t>(c)] > 0) order.push_back(c);
  std::ranges::stable_sort(
      order, [&](auto a, auto b) { return recognised_share(test, a) < recognised_share(test, b); });
  order.resize(std::min(order.size(), most_rows));
  std::string rows;
  for (const std::int64_t c : order) {
    const auto i = static_cast<std::size_t>(c);
    rows += fmt::format(
        "<tr><th>{}</th><td class=\"number\">{} of {}</td>"
        "<td class=\"number\">{}</td></tr>\n",
        class_name(report, c), test.correct[i], test.samples[i],
        percent(recognised_share(test, c)));
  }
  return table("worst-classes", "The classes that are recognised least",
               "<th>Class</th><th class=\"number\">Recognised</th>"
               "<th class=\"number\">Share</th>",
               rows);
}

}  // namespace

std::string confusion_section(const RunReport& report) {
  const TestDetails& test = report.test;
  if (test.samples.empty()) return {};
  if (test.confusion.empty())
    return section("confusion", "Classes",
                   fmt::format("<p class=\"note\">With more than {} classes it is not recorded "
                               "which is taken for which.</p>\n",
                               TestDetails::most_confusion_classes) +
                       worst_classes(report));
  const bool has_picture = test.classes <= most_in_picture,
             has_numbers = test.classes <= most_with_numbers;
  std::string content;
  if (has_picture)
    content = fmt::format(
        "<p class=\"note\">A row is a true class. Blue is what was recognised, orange what was "
        "taken "
        "for something else; the stronger, the larger is the share of the row.{}</p>\n",
        has_numbers ? " At the right: the share that was recognised." : "");
  content += "<div class=\"columns\">\n";
  if (has_picture) content += "<div>" + picture(report) + "</div>\n";
  // With numbers in the picture, the shares of the classes stand beside it already.
  const std::string tables = worst_pairs(report) + (has_numbers ? "" : worst_classes(report));
  content += has_picture ? "<div>" + tables + "</div>\n" : tables;
  return section("confusion", "Confusion matrix", content + "</div>\n");
}

}  // namespace tutti::examples
