// resume_command(): the command line that continues a stopped run.
#pragma once

#include <string>

namespace tutti::examples {

/// Returns the program's own command line with --resume and without --overwrite, quoted for a
/// shell. Of several `processes` it says how to start them again, too.
std::string resume_command(int argc, const char* const* argv, int processes);

}  // namespace tutti::examples
