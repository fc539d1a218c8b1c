#include "machine.h"

#include <benchmark/benchmark.h>

#include <fstream>
#include <string>

namespace tutti::benchmarks {

void add_machine_context() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string model = "unknown";
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  benchmark::AddCustomContext("processor", model);
  benchmark::AddCustomContext("compiler", __VERSION__);
}

}  // namespace tutti::benchmarks
