// What the arguments of the library's kernels say about the bytes that they move.
#pragma once

#include "census.h"

#include <string>
#include <vector>

namespace emulator::census {

/// Returns the types of a function's parameters, from its demangled name.
std::vector<std::string> parameter_types(const std::string& signature);
/// Reads the arguments of the library's kernels (a ReadArguments of census.h).
void read_arguments(Call& launch, void** arguments);

}  // namespace emulator::census
