// machine_facts(): the ranks of a run, and the machine and the program that they run on.
#include "run_report.h"

#include <tutti/core/cuda/runtime.h>
#include <tutti/core/parallel.h>
#include <tutti/core/version.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <fstream>

namespace tutti::examples {
namespace {

// Returns what follows `key` in the first line of the file that begins with it.
std::string value_in_file(const char* path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(separator);
    if (!line.starts_with(key) || at == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t\"", at + 1),
                      end = line.find_last_not_of(" \t\"");
    return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
  }
  return {};
}

std::string processor(const utsname& system) {
  const std::string name = value_in_file("/proc/cpuinfo", "model name", ':');
  return name.empty() ? std::string(system.machine) : name;
}

std::string memory() {
  const std::string kibibytes = value_in_file("/proc/meminfo", "MemTotal", ':');
  return kibibytes.empty() ? "unknown" : fmt::format("{:.1f} GiB", std::stod(kibibytes) / 0x1p20);
}

std::string name_of(Device device) {
  if (device.is_cpu()) return "CPU";
  return fmt::format("{} ({})", to_string(device), cuda::properties(device.index()).name);
}

}  // namespace

nlohmann::ordered_json machine_facts(const ProcessGroup& group, Device device) {
  utsname system{};
  uname(&system);
  const std::string distribution = value_in_file("/etc/os-release", "PRETTY_NAME", '=');
  return {{"Ranks", std::to_string(group.size())},
          {"Backend", group.size() > 1 ? group.backend() : "none: one rank"},
          {"Threads of each rank", std::to_string(num_threads())},
          {"Device of rank 0", name_of(device)},
          {"Processor", processor(system)},
          {"Cores for this process", std::to_string(available_cores())},
          {"Vector instructions", vector_instructions()},
          {"Memory", memory()},
          {"System", fmt::format("{}, Linux {}, {}", distribution, system.release, system.machine)},
          {"Compiler", compiler()},
          {"C library", fmt::format("glibc {}", gnu_get_libc_version())},
          {"tutti", version()}};
}

}  // namespace tutti::examples
