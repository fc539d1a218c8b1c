#include "sections.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::examples {
namespace {

constexpr std::size_t most_ranks = 32;

struct PartName {
  StepPart part;
  const char *id, *text;
};
constexpr PartName parts[] = {{StepPart::load, "load", "Loading"},
                              {StepPart::forward, "forward", "Forward"},
                              {StepPart::backward, "backward", "Backward"},
                              {StepPart::optimizer, "optimizer", "Optimizer"},
                              {StepPart::waiting, "waiting", "Waiting for ranks"},
                              {StepPart::other, "other", "Other"}};

double milliseconds(double seconds, const StepTimes& times) {
  return 1e3 * seconds / static_cast<double>(std::max<std::int64_t>(times.steps, 1));
}

std::string legend() {
  std::string out = "<ul class=\"legend\">";
  for (const PartName& p : parts)
    out += fmt::format("<li><i class=\"{}\"></i>{}</li>", p.id, p.text);
  return out + "</ul>\n";
}

std::string stack(const StepTimes& times, double longest) {
  std::string out = "<span class=\"stack\">";
  for (const PartName& p : parts) {
    const double time = milliseconds(times[p.part], times);
    if (time > 0)
      out += fmt::format("<i class=\"{}\" style=\"width:{:.2f}%\" title=\"{}: {}\"></i>", p.id,
                         100 * time / longest, p.text, milliseconds_text(time));
  }
  return out + "</span>";
}

// A bar for each rank.
std::string bars(const std::vector<StepTimes>& ranks) {
  double longest = 1e-9;
  for (const StepTimes& times : ranks)
    longest = std::max(longest, milliseconds(times.total(), times));
  std::string out = "<div class=\"ranks\">\n";
  for (std::size_t r = 0; r < std::min(ranks.size(), most_ranks); ++r)
    out += fmt::format("<span>rank {}</span>{}<span class=\"number\">{}</span>\n", r,
                       stack(ranks[r], longest),
                       milliseconds_text(milliseconds(ranks[r].total(), ranks[r])));
  return out + "</div>\n";
}

// Parts in the rows: the mean of the ranks, their largest, and the share.
std::string part_table(const std::vector<StepTimes>& ranks) {
  double total = 1e-12;
  for (const StepTimes& times : ranks) total += milliseconds(times.total(), times);
  std::string rows;
  for (const PartName& p : parts) {
    double sum = 0, most = 0;
    for (const StepTimes& times : ranks) {
      sum += milliseconds(times[p.part], times);
      most = std::max(most, milliseconds(times[p.part], times));
    }
    rows += fmt::format(
        "<tr><th>{}</th><td class=\"number\">{:.2f}</td>"
        "<td class=\"number\">{:.2f}</td><td class=\"number\">{}</td></tr>\n",
        p.text, sum / static_cast<double>(ranks.size()), most, percent(sum / total));
  }
  return "<div class=\"scroll\"><h3>Milliseconds of a step</h3>\n<table><thead><tr>"
         "<th>Part</th><th class=\"number\">Mean</th><th class=\"number\">Slowest rank</th>"
         "<th class=\"number\">Share</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div>\n";
}

// Returns the report of the last epoch that has one: with several ranks.
const distributed::StragglerMonitor::Report* straggler_report(const RunReport& report) {
  for (auto row = report.rows.rbegin(); row != report.rows.rend(); ++row)
    if (row->stragglers) return &*row->stragglers;
  return nullptr;
}

std::string straggler_table(const distributed::StragglerMonitor::Report& report) {
  std::string rows;
  for (std::size_t r = 0; r < std::min(report.waited_seconds.size(), most_ranks); ++r)
    rows += fmt::format(
        "<tr><th>rank {}</th><td class=\"number\">{:.2f}</td>"
        "<td class=\"number\">{:.2f}</td><td class=\"number\">{}</td></tr>\n",
        r, report.waited_seconds[r], report.held_up_seconds[r], report.came_last[r]);
  return fmt::format(
      "<div id=\"stragglers\" class=\"scroll\"><h3>Who waited for whom</h3>\n"
      "<table><thead><tr><th></th><th class=\"number\">Waited, s</th>"
      "<th class=\"number\">Held up others, s</th><th class=\"number\">Came last</th></tr></thead>"
      "<tbody>\n{}</tbody></table>\n<p class=\"note\" style=\"margin-top:.7rem\">Of {} "
      "collectives. "
      "The others waited longest for rank {}.</p></div>\n",
      rows, report.collectives, report.straggler());
}

}  // namespace

std::string milliseconds_text(double value) {
  return fmt::format("{:.{}f}\u00a0ms", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string time_section(const RunReport& report) {
  if (report.step_times.empty() || report.step_times[0].steps == 0) return {};
  const auto& ranks = report.step_times;
  std::string note = fmt::format("Mean of the {} steps of the last epoch.", ranks[0].steps);
  if (ranks.size() > 1)
    note +=
        " Waiting is taken out of the parts in which it happens. Bars of ranks differ where "
        "one was slower.";
  if (report.on_cuda)
    note +=
        " These are the host's times: what it takes to launch the work of the device, and, in "
        "Other, to wait for it.";
  if (ranks.size() > most_ranks) note += fmt::format(" The first {} ranks are shown.", most_ranks);
  const auto* const stragglers = straggler_report(report);
  return section("time", "Where the time of a step goes",
                 fmt::format("<p class=\"note\">{}</p>\n{}{}<div class=\"columns\">\n{}{}</div>\n",
                             note, bars(ranks), legend(), part_table(ranks),
                             stragglers ? straggler_table(*stragglers) : ""));
}

}  // namespace tutti::examples
