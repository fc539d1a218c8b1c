#include "html.h"
#include "sections.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::examples {
namespace {

constexpr std::int64_t most_pixels = 160;  // of a side

std::string picture(const RunReport& report, const Prediction& p, const Tensor& image) {
  const bool is_small = std::max(image.size(0), image.size(1)) <= 64;
  const std::string label = class_name(report, p.label);
  const std::string answer = p.label == p.predicted ? percent(p.probability)
                                                    : fmt::format("taken for {}<br/>{}",
                                                                  class_name(report, p.predicted),
                                                                  percent(p.probability));
  return fmt::format(
      "<li><img{} src=\"{}\" alt=\"test image {}: {}\"/><b>{}</b><span>{}</span>"
      "<span class=\"bar\"><i style=\"width:{:.0f}%\"></i></span></li>\n",
      is_small ? " class=\"small\"" : "", png_address(image, most_pixels), p.index, label, label,
      answer, 100 * std::clamp(p.probability, 0.0, 1.0));
}

std::string pictures(const RunReport& report, const char* kind, const std::string& heading,
                     const std::vector<Prediction>& predictions,
                     const std::vector<Tensor>& images) {
  const std::size_t n = std::min(predictions.size(), images.size());
  if (n == 0) return {};
  std::string out = fmt::format("<h3>{}</h3>\n<ul class=\"pictures {}\">\n", heading, kind);
  for (std::size_t i = 0; i < n; ++i) out += picture(report, predictions[i], images[i]);
  return out + "</ul>\n";
}

}  // namespace

std::string predictions_section(const RunReport& report) {
  const std::string content =
      pictures(report, "wrong", "Wrong, and the most certain of it", report.test.wrong,
               report.wrong_images) +
      pictures(report, "right", "Right, a random choice", report.test.right, report.right_images);
  if (content.empty()) return {};
  return section("predictions", "Predictions on test images",
                 "<p class=\"note\">The bold name is the true class; the percentage is the "
                 "probability that the network gives its answer.</p>\n" +
                     content);
}

}  // namespace tutti::examples
