// The sections of report.html. Each returns the HTML of one section, or nothing where the report
// has nothing for it.
#pragma once

#include "run_report.h"

namespace tutti::examples {

/// Returns the style sheet of the page: light and dark colours, and the layout for wide and narrow
/// screens.
std::string style_sheet();

/// Shows the most important numbers, large.
std::string figures_section(const RunReport& report);
/// Draws loss, accuracy, learning rate and images/s over the steps.
std::string curves_section(const RunReport& report);
/// Shows test images with what the network takes them for.
std::string predictions_section(const RunReport& report);
/// Shows the confusion matrix, the pairs that are confused most, and the classes that are
/// recognised least.
std::string confusion_section(const RunReport& report);
/// Shows where the time of a step goes on each rank, and which rank the others wait for.
std::string time_section(const RunReport& report);
/// Tells what is wrong in the BatchNorm layers, and what to do.
std::string batch_norm_section(const RunReport& report);
/// Lists the tables of configuration and machine.
std::string facts_section(const RunReport& report);

/// Returns a section with a heading, which others can link to by `id`, around `content`.
std::string section(const std::string& id, const std::string& heading, const std::string& content);
/// Returns the escaped name of a class, of at most so many characters: its number where the report
/// has no names.
std::string class_name(const RunReport& report, std::int64_t label, std::size_t characters = 60);
/// Returns a share as text: "12.3 %".
std::string percent(double share);
/// Returns milliseconds as text, to three digits: "12.3 ms".
std::string milliseconds_text(double value);

}  // namespace tutti::examples
