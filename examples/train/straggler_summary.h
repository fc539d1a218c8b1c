// The end of a run says which rank the others waited for.
#pragma once

#include "run_folder.h"

namespace tutti::examples {

/// Returns a line about the epochs of `rows` together: who held up the others for how long, and how
/// long each rank waited. Empty where no epoch has a straggler report, as on one rank.
std::string straggler_summary(const std::vector<Metrics>& rows);

}  // namespace tutti::examples
