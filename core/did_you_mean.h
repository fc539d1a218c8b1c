// did_you_mean() finds the known name that a wrong one comes close to, for error messages about
// names that people type: flags, models, options. It decides nothing else.
#pragma once

#include <string>
#include <vector>

namespace tutti {

/// Returns " (did you mean 'NAME'?)" with the known name that is nearest to `name`, or an empty
/// string where none is near. The distance is the number of characters to insert, delete, replace
/// or swap with their neighbour; upper and lower case are equal, and at most a third of the longer
/// name may differ. Of several names at the same distance the first counts.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& known);

}  // namespace tutti
