#include "../train/evaluation.h"
#include "sections.h"

#include <fmt/format.h>

namespace tutti::examples {
namespace {

// `value` and `unit` are HTML.
std::string figure(const std::string& name, const std::string& value, const std::string& unit) {
  return fmt::format("<div><dt>{}</dt><dd>{} <small>{}</small></dd></div>\n", name, value, unit);
}

// Returns the mean step of the slowest rank in milliseconds; 0 if nothing was measured.
double step_milliseconds(const RunReport& report) {
  double slowest = 0;
  for (const StepTimes& times : report.step_times)
    if (times.steps > 0)
      slowest = std::max(slowest, 1e3 * times.total() / static_cast<double>(times.steps));
  return slowest;
}

}  // namespace

std::string figures_section(const RunReport& report) {
  if (report.rows.empty()) return {};
  const Metrics& last = report.rows.back();
  const Metrics* const best = best_row(report.rows);
  std::string out = "<dl class=\"figures\" id=\"figures\">\n";
  if (last.test_accuracy)
    out += figure("Test accuracy", fmt::format("{:.4f}", *last.test_accuracy),
                  best && *best->test_accuracy > *last.test_accuracy
                      ? fmt::format("best {:.4f} in epoch {}", *best->test_accuracy, best->epoch)
                      : "");
  if (last.test_loss) out += figure("Test loss", fmt::format("{:.4f}", *last.test_loss), "");
  out += figure("Training accuracy", fmt::format("{:.4f}", last.train_accuracy), "");
  out += figure("Training loss", fmt::format("{:.4f}", last.train_loss), "");
  out += figure("Speed", fmt::format("{:.0f}", last.images_per_second), "images/s");
  if (const double step = step_milliseconds(report); step > 0)
    out += figure("A step", milliseconds_text(step), "");
  return out + "</dl>\n";
}

}  // namespace tutti::examples
