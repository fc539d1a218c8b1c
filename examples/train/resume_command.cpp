#include "resume_command.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace tutti::examples {
namespace {

// Returns the argument as a shell has to see it to pass it on unchanged.
std::string quote(std::string_view argument) {
  constexpr std::string_view harmless =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-";
  if (!argument.empty() && argument.find_first_not_of(harmless) == std::string_view::npos)
    return std::string(argument);
  std::string quoted = "'";
  for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// The launcher's own arguments, such as host files, are not known to its processes.
std::string launcher_of(int processes) {
  if (processes == 1) return {};
  return std::getenv("OMPI_COMM_WORLD_SIZE")
             ? fmt::format("mpirun -n {} ", processes)
             : fmt::format("(with the same launcher, {} processes) ", processes);
}

}  // namespace

std::string resume_command(int argc, const char* const* argv, int processes) {
  std::string command = launcher_of(processes);
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--resume" || argument == "--overwrite") continue;
    command += quote(argument) + " ";
  }
  return command + "--resume";
}

}  // namespace tutti::examples
