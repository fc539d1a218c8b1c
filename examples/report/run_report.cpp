#include "run_report.h"

#include "html.h"
#include "sections.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace tutti::examples {
namespace {

// The policy lets the page load nothing at all, so that a mistake in it could not tell anybody that
// it is read.
std::string head(const RunReport& report) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
      "style-src 'unsafe-inline'\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{}</title>\n<style>\n{}</style>\n</head>\n",
      escape(report.title), style_sheet());
}

std::string state_of(const RunReport& report) {
  const Metrics last = report.rows.empty() ? Metrics{} : report.rows.back();
  const bool is_finished = last.step >= report.length.steps;
  return fmt::format(
      "<p class=\"state\"><span class=\"{}\">{}</span> epoch {} of {}, step {} of {}"
      "<span class=\"when\">{:%Y-%m-%d %H:%M} UTC</span></p>\n",
      is_finished ? "done" : "running", is_finished ? "finished" : "not finished", last.epoch,
      report.length.epochs, last.step, report.length.steps, fmt::gmtime(std::time(nullptr)));
}

}  // namespace

std::string section(const std::string& id, const std::string& heading, const std::string& content) {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, heading, content);
}

std::string class_name(const RunReport& report, std::int64_t label, std::size_t characters) {
  if (label < 0) return "no class";
  const auto i = static_cast<std::size_t>(label);
  return i < report.class_names.size() ? escape(shorten(report.class_names[i], characters))
                                       : std::to_string(label);
}

std::string percent(double share) { return fmt::format("{:.1f}\u00a0%", 100 * share); }

std::string to_html(const RunReport& report) {
  std::string page = head(report);
  page += fmt::format("<body>\n<main>\n<header>\n{}<h1>{}</h1>\n<p class=\"lead\">{}</p>\n",
                      state_of(report), escape(report.title), escape(report.headline));
  page += figures_section(report) + "</header>\n";
  for (const auto draw : {curves_section, predictions_section, confusion_section, time_section,
                          batch_norm_section, facts_section})
    page += draw(report);
  return page +
         "<footer><p>Written by train_resnet of tutti. The page is complete in itself: it "
         "loads nothing.</p></footer>\n</main>\n</body>\n</html>\n";
}

}  // namespace tutti::examples
