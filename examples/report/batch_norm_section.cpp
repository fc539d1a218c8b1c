#include "html.h"
#include "sections.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::examples {
namespace {

using Layer = nn::BatchNormReport::Layer;

std::string advice(const BatchNormCheck& check) {
  std::string items;
  for (const std::string& warning : check.report.warnings)
    items += fmt::format("<li>{}</li>\n", escape(warning));
  if (items.empty()) items = "<li class=\"good\">Nothing is out of order.</li>\n";
  items += fmt::format(
      "<li class=\"{}\">Test accuracy is {:.4f} with the running statistics, and {:.4f} if they "
      "are "
      "recomputed from {} training batches (nn::recompute_statistics).</li>\n",
      check.recomputed.accuracy > check.running.accuracy ? "warn" : "good", check.running.accuracy,
      check.recomputed.accuracy, check.batches);
  return "<ul class=\"advice\">\n" + items + "</ul>\n";
}

std::string channels(std::size_t count) { return count == 0 ? "" : std::to_string(count); }

double farthest_rank(const Layer& layer) {
  return layer.rank_distance.empty() ? 0 : std::ranges::max(layer.rank_distance);
}

std::string row_of(const Layer& layer, double largest_error) {
  std::string name = escape(layer.path);
  if (!layer.is_synchronized) name += " <small>(each rank alone)</small>";
  return fmt::format(
      "<tr><th>{}</th><td class=\"number\">{}</td><td class=\"number\">{:.0f}</td>"
      "<td class=\"number\">{:.3f}<span class=\"bar\"><i style=\"width:{:.1f}%\"></i></span></td>"
      "<td class=\"number\">{:.3f}</td><td class=\"number\">{:.2f}</td>"
      "<td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>"
      "<td class=\"number\">{:.3f}</td></tr>\n",
      name, layer.channels, layer.values_per_batch, layer.evaluation_error,
      100 * std::min(layer.evaluation_error / largest_error, 1.0), layer.mean_distance,
      layer.variance_ratio, channels(layer.constant.size()), channels(layer.silent.size()),
      channels(layer.exploded.size()), farthest_rank(layer));
}

std::string table(const std::vector<Layer>& layers) {
  double largest = 0.5;  // small errors stay small, also where no layer has a large one
  for (const Layer& layer : layers) largest = std::max(largest, layer.evaluation_error);
  std::string rows;
  for (const Layer& layer : layers) rows += row_of(layer, largest);
  return "<div class=\"scroll\"><table class=\"layers\"><thead><tr><th>Layer</th>"
         "<th class=\"number\">Channels</th><th class=\"number\">Values a batch</th>"
         "<th class=\"number\">Error in evaluation</th><th class=\"number\">Mean off by</th>"
         "<th class=\"number\">Variance ratio</th><th class=\"number\">Constant</th>"
         "<th class=\"number\">Silent</th><th class=\"number\">Exploded</th>"
         "<th class=\"number\">Ranks apart</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div>\n";
}

}  // namespace

std::string batch_norm_section(const RunReport& report) {
  if (!report.batch_norm) return {};
  return section(
      "batch-norm", "Batch normalisation",
      "<p class=\"note\">Training normalises by the statistics of a batch, evaluation by running "
      "averages of them. Distances are in standard deviations of a channel; a variance ratio of 1 "
      "is "
      "best. Constant, silent and exploded are numbers of channels.</p>\n" +
          advice(*report.batch_norm) + table(report.batch_norm->report.layers));
}

}  // namespace tutti::examples
