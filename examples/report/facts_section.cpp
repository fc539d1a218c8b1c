#include "html.h"
#include "sections.h"

#include <fmt/format.h>

namespace tutti::examples {
namespace {

std::string list(const std::string& id, const std::string& heading, const Facts& facts) {
  std::string out = fmt::format("<h3>{}</h3>\n<dl class=\"facts\" id=\"{}\">\n", heading, id);
  for (const auto& [name, value] : facts)
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value));
  return out + "</dl>\n";
}

}  // namespace

std::string facts_section(const RunReport& report) {
  return section("facts", "Machine and configuration",
                 list("machine", "Machine", report.machine) +
                     list("configuration", "Configuration", report.configuration));
}

}  // namespace tutti::examples
